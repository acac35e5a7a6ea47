// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/policy"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/podset"
	"github.com/kiln-net/kiln/internal/trace"
)

// watched are the pods of a target, and the objects that decide about their packets.
type watched struct {
	// addresses are the pods by their addresses, and nodes the nodes that they are on.
	addresses map[netip.Addr][]owner
	nodes     []string
	// policies are the policies that select them and drop packets, and the Subnets whose acls do, by their names.
	policies map[trace.Object]client.Object
	// acls are the objects with ACLs that log, by the names of these.
	acls map[string][]trace.Object
	// pods are the pods, and groups the security groups that they name.
	pods   []*corev1.Pod
	groups map[string]bool
	// vpcs are the VPCs of Subnets. It is nil if the user may not read Subnets.
	vpcs map[string]string
}

// addACL adds an object with an ACL of a name. Cut names of both directions can be the same.
func (w *watched) addACL(name string, o trace.Object) {
	if !slices.Contains(w.acls[name], o) {
		w.acls[name] = append(w.acls[name], o)
	}
}

// read reads the pods of the target, and the objects that decide about their packets.
func (r *dropsRun) read(ctx context.Context) (*watched, error) {
	pods, err := r.podsOfTarget(ctx)
	if err != nil {
		return nil, err
	}
	w := &watched{addresses: map[netip.Addr][]owner{}, policies: map[trace.Object]client.Object{}, acls: map[string][]trace.Object{}, groups: map[string]bool{}}
	switches, nodes, byNamespace := map[string]bool{}, map[string]bool{}, map[string][]*corev1.Pod{}
	for i := range pods {
		pod := &pods[i]
		network, err := kubeovnv1.ParsePodNetwork(pod.Annotations)
		if err != nil || pod.Spec.HostNetwork || !kubeovnv1.IsPublished(pod) || !podset.Counts(pod) {
			continue
		}
		for _, a := range network.Addresses {
			w.addresses[a] = append(w.addresses[a], owner{
				Object: trace.Object{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name}, vpc: network.LogicalRouter, target: true,
			})
		}
		nodes[pod.Spec.NodeName], switches[network.LogicalSwitch] = true, true
		byNamespace[pod.Namespace] = append(byNamespace[pod.Namespace], pod)
		w.pods = append(w.pods, pod)
		for _, group := range kubeovnv1.ParseSecurityGroups(pod.Annotations) {
			w.groups[group] = true
		}
	}
	w.nodes = slices.Sorted(maps.Keys(nodes))
	if len(w.nodes) == 0 {
		return nil, fmt.Errorf("%s has no pod with an address of Kiln: pods in the network of their node, and pods that have ended, have none", r.target)
	}
	for _, namespace := range slices.Sorted(maps.Keys(byNamespace)) {
		if r.ignored {
			break
		}
		if err := r.readPolicies(ctx, w, namespace, byNamespace[namespace]); err != nil {
			return nil, err
		}
	}
	if err := r.readGroups(ctx, w); err != nil {
		return nil, err
	}
	if err := r.readClusterPolicies(ctx, w); err != nil {
		return nil, err
	}
	return w, r.readSubnets(ctx, w, switches)
}

// podsOfTarget returns the pods of the target.
func (r *dropsRun) podsOfTarget(ctx context.Context) ([]corev1.Pod, error) {
	if name := r.target.pod; name.Name != "" {
		pod := &corev1.Pod{}
		if err := r.objects.Get(ctx, name, pod); err != nil {
			return nil, fmt.Errorf("read the pod: %w", err)
		}
		return []corev1.Pod{*pod}, nil
	}
	list, of := &corev1.PodList{}, client.ListOption(client.InNamespace(r.target.namespace))
	if r.target.node != "" {
		of = client.MatchingFields{"spec.nodeName": r.target.node}
	}
	if err := r.objects.List(ctx, list, of); err != nil {
		return nil, fmt.Errorf("list the pods of %s: %w", r.target, err)
	}
	return list.Items, nil
}

// readPolicies adds the NetworkPolicies of a namespace that drop packets of some pods. kube-ovn-controller names the ACLs by the same function.
func (r *dropsRun) readPolicies(ctx context.Context, w *watched, namespace string, pods []*corev1.Pod) error {
	list := &networkingv1.NetworkPolicyList{}
	if err := r.objects.List(ctx, list, client.InNamespace(namespace)); err != nil {
		if apierrors.IsForbidden(err) {
			r.note("NetworkPolicies of namespace %s may log nothing: you may not list networkpolicies.networking.k8s.io in namespace %s", namespace, namespace)
			return nil
		}
		return fmt.Errorf("list NetworkPolicies: %w", err)
	}
	objects := make([]client.Object, len(list.Items))
	for i := range list.Items {
		objects[i] = &list.Items[i]
	}
	for i, rules := range policy.RulesOf(objects, policy.World{Numbers: func(podset.Selector) []int32 { return nil }}) {
		np := &list.Items[i]
		selector, err := metav1.LabelSelectorAsSelector(&np.Spec.PodSelector)
		if err != nil || !slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return selector.Matches(labels.Set(p.Labels)) }) {
			continue
		}
		for _, row := range rules.Rows {
			if acl, is := row.Model.(*nb.ACL); is && acl.Action == nb.ACLActionDrop && acl.Name != nil {
				o := trace.Object{Kind: kindNetworkPolicy, Namespace: np.Namespace, Name: np.Name}
				w.policies[o] = np
				w.addACL(*acl.Name, o)
			}
		}
	}
	return nil
}

// readSubnets adds the private Subnets, whose drops are logged, the acls of the pods' Subnets, and the VPCs of Subnets.
func (r *dropsRun) readSubnets(ctx context.Context, w *watched, switches map[string]bool) error {
	list := &kubeovnv1.SubnetList{}
	if err := r.objects.List(ctx, list); err != nil {
		if apierrors.IsForbidden(err) {
			r.note("addresses may have no names: you may not list subnets.kubeovn.io")
			return nil
		}
		return fmt.Errorf("list Subnets: %w", err)
	}
	w.vpcs = map[string]string{}
	for i := range list.Items {
		subnet := k8s.Applied(&list.Items[i])
		w.vpcs[subnet.Name] = lookup.VpcOf(subnet)
		if subnet.Spec.Private {
			w.addACL(subnet.Name[:min(len(subnet.Name), maxACLName)], trace.Object{Kind: kindSubnet, Name: subnet.Name})
		}
		for _, rule := range subnet.Spec.ACLs {
			o := trace.Object{Kind: kindSubnet, Name: subnet.Name}
			if !switches[subnet.Name] || !translate.Drops(rule) {
				continue
			}
			w.policies[o] = subnet
			o.Rule = fmt.Sprintf("acls with direction %s and priority %d", rule.Direction, rule.Priority)
			w.addACL(translate.SubnetACLName(subnet.Name, rule), o)
		}
	}
	return nil
}

// explain prints the nodes.
func (r *dropsRun) explain() {
	if len(r.watched.policies) == 0 {
		r.note("no policy that you may list selects these pods")
	}
	r.note("following the logs of nodes %s for %s", k8s.Some(r.watched.nodes, listed), r.duration)
}
