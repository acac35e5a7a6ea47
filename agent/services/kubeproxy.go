// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/knftables"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

// Traces of kube-proxy in the kernel, by mode.
const (
	proxyTable     = "kube-proxy"    // nftables, in each family
	proxyChain     = "KUBE-SERVICES" // iptables, in table nat of each family
	proxyInterface = "kube-ipvs0"    // IPVS
)

// Reasons of v1alpha1.NodeConditionKubeProxy.
const (
	ReasonRulesFound = "RulesFound"
	ReasonNoRules    = "NoRules"
)

// KubeProxyCheck detects kube-proxy's rules on the node and reports them as a condition of the node.
type KubeProxyCheck struct {
	Client client.Client
	Node   string

	tables []kubeProxyTable
}

// kubeProxyTable is a table in which kube-proxy has chains; if chain is empty, any chain counts.
type kubeProxyTable struct {
	nft   knftables.Interface
	chain string
	words string
}

// NewKubeProxyCheck returns a KubeProxyCheck for the current network namespace.
func NewKubeProxyCheck(c client.Client, node string) (*KubeProxyCheck, error) {
	r := &KubeProxyCheck{Client: c, Node: node}
	for _, family := range []knftables.Family{knftables.IPv4Family, knftables.IPv6Family} {
		for _, t := range []struct{ table, chain string }{{proxyTable, ""}, {"nat", proxyChain}} {
			nft, err := knftables.New(family, t.table)
			if err != nil {
				return nil, fmt.Errorf("open nftables: %w", err)
			}
			r.tables = append(r.tables, kubeProxyTable{nft, t.chain, strings.TrimSpace(fmt.Sprintf("table %s %s %s", family, t.table, t.chain))})
		}
	}
	return r, nil
}

// Update looks for kube-proxy's rules and sets the condition. It writes only changes.
func (r *KubeProxyCheck) Update(ctx context.Context) error {
	found, err := r.traces(ctx)
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return r.setCondition(ctx, corev1.NodeCondition{
			Status: corev1.ConditionFalse, Reason: ReasonNoRules, Message: "Kiln alone serves Services on this node",
		})
	}
	return r.setCondition(ctx, corev1.NodeCondition{
		Status: corev1.ConditionTrue, Reason: ReasonRulesFound,
		Message: "services.nodeAccess is Kiln, and kube-proxy's rules are on the node (" + strings.Join(found, ", ") +
			"): remove its DaemonSet, and run kube-proxy --cleanup here",
	})
}

// traces describes kube-proxy's tables and interfaces on the node.
func (r *KubeProxyCheck) traces(ctx context.Context) ([]string, error) {
	var found []string
	for _, t := range r.tables {
		chains, err := t.nft.List(ctx, "chains")
		if err != nil && !knftables.IsNotFound(err) {
			return nil, fmt.Errorf("list chains: %w", err)
		}
		if t.chain == "" && len(chains) > 0 || t.chain != "" && slices.Contains(chains, t.chain) {
			found = append(found, t.words)
		}
	}
	if _, err := net.InterfaceByName(proxyInterface); err == nil {
		found = append(found, "interface "+proxyInterface)
	}
	return found, nil
}

// RemoveCondition removes the condition: kube-proxy serves Services on the node.
func (r *KubeProxyCheck) RemoveCondition(ctx context.Context) error {
	return r.patch(ctx, func(have *corev1.NodeCondition) *corev1.NodeCondition { return nil })
}

// setCondition sets the condition. It does not create a condition with status False.
func (r *KubeProxyCheck) setCondition(ctx context.Context, want corev1.NodeCondition) error {
	want.Type = v1alpha1.NodeConditionKubeProxy
	return r.patch(ctx, func(have *corev1.NodeCondition) *corev1.NodeCondition {
		switch {
		case have == nil && want.Status == corev1.ConditionFalse:
			return nil
		case have != nil && have.Status == want.Status && have.Message == want.Message:
			return have
		}
		want.LastHeartbeatTime, want.LastTransitionTime = metav1.Now(), metav1.Now()
		if have != nil && have.Status == want.Status {
			want.LastTransitionTime = have.LastTransitionTime
		}
		return &want
	})
}

// patch replaces the condition by the result of change; nil removes it.
func (r *KubeProxyCheck) patch(ctx context.Context, change func(*corev1.NodeCondition) *corev1.NodeCondition) error {
	node := &corev1.Node{}
	if err := r.Client.Get(ctx, client.ObjectKey{Name: r.Node}, node); err != nil {
		return client.IgnoreNotFound(err)
	}
	var have *corev1.NodeCondition
	after := node.DeepCopy()
	after.Status.Conditions = slices.DeleteFunc(after.Status.Conditions, func(c corev1.NodeCondition) bool {
		if c.Type != v1alpha1.NodeConditionKubeProxy {
			return false
		}
		have = &c
		return true
	})
	want := change(have)
	if want == have {
		return nil
	}
	if want != nil {
		after.Status.Conditions = append(after.Status.Conditions, *want)
	}
	if err := r.Client.Status().Patch(ctx, after, client.StrategicMergeFrom(node)); err != nil {
		return fmt.Errorf("set condition %s of node %s: %w", v1alpha1.NodeConditionKubeProxy, r.Node, err)
	}
	return nil
}
