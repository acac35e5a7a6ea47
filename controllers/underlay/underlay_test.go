// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package underlay_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/controllers/underlay"
	"github.com/kiln-net/kiln/internal/validation"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

type world struct{ *controllertest.World }

func newWorld(t *testing.T) world {
	w := world{controllertest.New(t)}
	w.Nodes = nil
	w.Start(controllertest.Steps{Setup: func(ctx context.Context, p *controllertest.Process) error {
		return p.Run(ctx, &underlay.VlanReconciler{Client: p.Client, Networks: p.Networks, Recorder: p.Recorder, Gate: p.Gate},
			&underlay.ProviderReconciler{Client: p.Client, Recorder: p.Recorder, Gate: p.Gate})
	}})
	return w
}

func provider(name string, change ...func(*kubeovnv1.ProviderNetworkSpec)) *kubeovnv1.ProviderNetwork {
	pn := &kubeovnv1.ProviderNetwork{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.ProviderNetworkSpec{DefaultInterface: "eth1"}}
	for _, f := range change {
		f(&pn.Spec)
	}
	return pn
}

func vlan(name, provider string, id int) *kubeovnv1.Vlan {
	return &kubeovnv1.Vlan{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.VlanSpec{Provider: provider, ID: id}}
}

// reports writes what an agent reports on its node.
func (w world) reports(node *corev1.Node, labels, annotations map[string]string) {
	w.Helper()
	w.Get(node)
	base := node.DeepCopy()
	node.Labels, node.Annotations = labels, annotations
	w.Must(w.Client.Patch(w.Context(), node, client.MergeFrom(base)))
}

// status waits until a ProviderNetwork has a status that check accepts.
func (w world) status(pn *kubeovnv1.ProviderNetwork, check func(kubeovnv1.ProviderNetworkStatus) string) {
	w.Helper()
	w.Eventually(func() string {
		w.Get(pn)
		return check(pn.Status)
	})
}

func TestTheStatusOfAProviderNetworkFollowsNodes(t *testing.T) {
	w := newWorld(t)
	nodes := []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, {ObjectMeta: metav1.ObjectMeta{Name: "b"}}, {ObjectMeta: metav1.ObjectMeta{Name: "c"}}}
	w.Create(nodes[0], nodes[1], nodes[2])
	pn := provider("net1", func(s *kubeovnv1.ProviderNetworkSpec) { s.ExcludeNodes, s.ExchangeLinkName = []string{"c"}, true })
	w.Create(pn)
	w.status(pn, func(s kubeovnv1.ProviderNetworkStatus) string {
		if s.Ready || !slices.Equal(s.NotReadyNodes, []string{"a", "b"}) || len(s.ReadyNodes) > 0 {
			return "before any report, the status is wrong"
		}
		return ""
	})
	ready := map[string]string{kubeovnv1.ProviderKey("net1", kubeovnv1.ProviderReady): "true"}
	w.reports(nodes[0], ready, nil)
	w.reports(nodes[1], nil, map[string]string{kubeovnv1.ProviderKey("net1", kubeovnv1.ProviderError): "InterfaceNotFound: there is no interface eth1"})
	w.status(pn, func(s kubeovnv1.ProviderNetworkStatus) string {
		i := slices.IndexFunc(s.Conditions, func(c kubeovnv1.ProviderNetworkCondition) bool { return c.Node == "b" })
		switch {
		case s.Ready || !slices.Equal(s.ReadyNodes, []string{"a"}) || !slices.Equal(s.NotReadyNodes, []string{"b"}):
			return "the nodes are wrong"
		case i < 0 || s.Conditions[i].Reason != "InterfaceNotFound" || s.Conditions[i].Message != "there is no interface eth1":
			return "the cause of node b is missing"
		case !slices.ContainsFunc(s.OwnConditions(), func(c metav1.Condition) bool {
			return strings.Contains(c.Message, "node b: there is no interface eth1")
		}):
			return "the network's condition does not have the cause"
		case !slices.ContainsFunc(s.OwnConditions(), func(c metav1.Condition) bool {
			return c.Type == kubeovnv1.ConditionFieldsSupported && strings.Contains(c.Message, "exchangeLinkName")
		}):
			return "the ignored field is not reported"
		}
		return ""
	})
	w.reports(nodes[1], ready, nil)
	w.status(pn, func(s kubeovnv1.ProviderNetworkStatus) string {
		if !s.Ready || len(s.NotReadyNodes) > 0 || slices.ContainsFunc(s.Conditions, func(c kubeovnv1.ProviderNetworkCondition) bool { return c.Node != "" }) {
			return "the network is not ready, or a condition of a node remains"
		}
		return ""
	})
}

func TestNamesOfBridgesAreChecked(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"thirteen-char", "a.b"} {
		pn := provider(name)
		w.Create(pn)
		w.status(pn, func(s kubeovnv1.ProviderNetworkStatus) string {
			if !slices.ContainsFunc(s.OwnConditions(), func(c metav1.Condition) bool {
				return c.Type == kubeovnv1.ConditionValidated && c.Reason == validation.ReasonNameInvalid
			}) {
				return "the name is not reported"
			}
			return ""
		})
	}
}

func TestVlansConflictAndBlockDeletion(t *testing.T) {
	w := newWorld(t)
	first := vlan("first", "net1", 10)
	w.Create(first)
	w.Says(first, kubeovnv1.ConditionReady, metav1.ConditionFalse, "ProviderNetwork net1 does not exist")
	pn := provider("net1")
	w.Create(pn)
	w.Ready(first)
	second := vlan("second", "net1", 0)
	second.Spec.VlanID = 10
	w.Create(second, vlan("elsewhere", "net2", 10))
	w.Says(second, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "Vlan first has id 10")
	if w.Get(second); !second.Status.Conflict {
		t.Error("status.conflict is false")
	}
	w.Change(second, func() { second.Spec.ID = 11 })
	w.Ready(second)
	if w.Get(second); second.Status.Conflict {
		t.Error("status.conflict stays true")
	}
	if err := w.Client.Patch(w.Context(), second, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"provider":"net2"}}`))); err == nil {
		t.Error("the provider of a Vlan changed")
	}

	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "lab"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.30.0.0/24", Vlan: "first"}}
	w.Create(s)
	w.Eventually(func() string {
		if w.Get(first); !slices.Equal(first.Status.Subnets, []string{"lab"}) {
			return "status.subnets is wrong"
		}
		return ""
	})
	w.Delete(first, pn)
	w.Says(first, kubeovnv1.ConditionReady, metav1.ConditionFalse, "no subnet uses it: lab")
	w.status(pn, func(st kubeovnv1.ProviderNetworkStatus) string {
		if !slices.ContainsFunc(st.OwnConditions(), func(c metav1.Condition) bool { return strings.Contains(c.Message, "no Vlan uses it: first, second") }) {
			return "the deletion of a used ProviderNetwork is not explained"
		}
		return ""
	})
	w.Delete(s)
	w.Gone(first)
	w.Delete(second)
	w.Gone(second, pn)
}
