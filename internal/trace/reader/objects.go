// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/policy"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/svc"
	"github.com/kiln-net/kiln/internal/trace"
)

// ends reads both ends, and the objects of the network.
func (r *reading) ends(ctx context.Context, g *requests) {
	g.Go(func() error {
		oc := &v1alpha1.OVNCluster{}
		ok, err := r.answered(r.Get(ctx, types.NamespacedName{Name: v1alpha1.OVNClusterName}, oc),
			trace.Unread{Resource: trace.ResourceCluster, Name: v1alpha1.OVNClusterName, Verb: "get"})
		if ok {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.s.Cluster = oc
			r.addServiceCIDRs(prefixes(oc.Spec.Network.ServiceCIDRs))
		}
		return err
	})
	subnets, vpcs, groups := &kubeovnv1.SubnetList{}, &kubeovnv1.VpcList{}, &kubeovnv1.SecurityGroupList{}
	g.Go(list(ctx, r, trace.ResourceSubnets, "", subnets, func() { r.s.Subnets = pointers(subnets.Items) }))
	g.Go(list(ctx, r, trace.ResourceVpcs, "", vpcs, func() { r.s.Vpcs = pointers(vpcs.Items) }))
	g.Go(list(ctx, r, trace.ResourceGroups, "", groups, func() { r.s.Groups = pointers(groups.Items) }))
	cidrs := &networkingv1.ServiceCIDRList{}
	g.Go(func() error {
		if err := r.List(ctx, cidrs); err == nil { // a cluster before Kubernetes 1.33 has none, and the OVNCluster has the first ones
			r.mu.Lock()
			defer r.mu.Unlock()
			for i := range cidrs.Items {
				r.addServiceCIDRs(svc.PrefixesOf(&cidrs.Items[i]))
			}
		}
		return nil
	})
	r.clusterPolicies(ctx, g)
	for _, end := range []trace.End{r.query.From, r.query.To} {
		switch {
		case end.Pod.Name != "":
			g.Go(get(ctx, r, trace.ResourceNamespaces, "", end.Pod.Namespace, &r.s.Namespaces))
			g.Go(get(ctx, r, trace.ResourcePods, end.Pod.Namespace, end.Pod.Name, &r.s.Pods))
		case end.Node != "":
			r.node(ctx, g, end.Node)
		case end.Service.Name != "":
			g.Go(get(ctx, r, trace.ResourceNamespaces, "", end.Service.Namespace, &r.s.Namespaces))
			g.Go(get(ctx, r, trace.ResourceServices, end.Service.Namespace, end.Service.Name, &r.s.Services))
		}
		for _, address := range end.Addrs() {
			r.address(ctx, g, address)
		}
	}
	r.frontsOf(ctx, g)
}

func prefixes(texts []string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		if p, err := ipfamily.ParseCIDR(text); err == nil {
			out = append(out, p)
		}
	}
	return out
}

func (r *reading) addServiceCIDRs(list []netip.Prefix) {
	for _, p := range list {
		if !slices.ContainsFunc(r.s.ServiceCIDRs, p.Overlaps) {
			r.s.ServiceCIDRs = append(r.s.ServiceCIDRs, p.Masked())
		}
	}
}

// clusterPolicies reads the cluster-wide policies of each kind, in the first version that the API server serves.
func (r *reading) clusterPolicies(ctx context.Context, g *requests) {
	kinds := policy.ClusterKinds()
	byName := map[string][]policy.ClusterKind{}
	for _, k := range kinds {
		byName[k.Name] = append(byName[k.Name], k)
	}
	for _, versions := range byName {
		g.Go(func() error {
			for _, k := range versions {
				l := k.List()
				err := r.List(ctx, l)
				if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
					continue
				}
				ok, err := r.answered(err, trace.Unread{Resource: k.Resource + "." + trace.GroupPolicies, Verb: "list"})
				if !ok {
					return err
				}
				items, err := meta.ExtractList(l)
				r.mu.Lock()
				defer r.mu.Unlock()
				for _, item := range items {
					r.s.Policies = append(r.s.Policies, item.(client.Object))
				}
				return err
			}
			return nil
		})
	}
}

// address reads the owner of an address: a pod by the API server's own index, a node, or a pod by its IP object.
func (r *reading) address(ctx context.Context, g *requests, addr netip.Addr) {
	pods := &corev1.PodList{}
	by := client.MatchingFields{"status.podIP": addr.String()}
	g.Go(func() error {
		err := list(ctx, r, trace.ResourcePods, "", pods, func() { r.addPods(pointers(pods.Items)) }, by)()
		namespace := cmp.Or(r.query.From.Pod.Namespace, r.query.To.Pod.Namespace)
		switch {
		case err != nil:
			return err
		case !r.mayNot(trace.ResourcePods):
			return r.holders(ctx, addr, len(pods.Items) > 0)
		case namespace == "":
			return nil
		}
		own := &corev1.PodList{}
		return list(ctx, r, trace.ResourcePods, namespace, own, func() { r.addPods(havingAddress(own.Items, addr)) })()
	})
	r.nodeAt(ctx, g, addr)
}

// nodeAt adds the node with an address. All nodes are read once.
func (r *reading) nodeAt(ctx context.Context, g *requests, addr netip.Addr) {
	g.Go(func() (err error) {
		r.listNodes.Do(func() {
			nodes := &corev1.NodeList{}
			err = list(ctx, r, trace.ResourceNodes, "", nodes, func() {})()
			r.nodes = map[netip.Addr]*corev1.Node{}
			for i := range nodes.Items {
				for _, a := range k8s.OwnIPs(&nodes.Items[i]) {
					r.nodes[a] = &nodes.Items[i]
				}
			}
		})
		if node := r.nodes[addr]; node != nil && r.once(trace.ResourceNodes+"//"+node.Name) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.s.Nodes = append(r.s.Nodes, node)
		}
		return err
	})
}

// mayNot reports whether a list of the whole cluster is forbidden.
func (r *reading) mayNot(resource string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.s.Unread, func(u trace.Unread) bool { return u.Resource == resource && u.Namespace == "" })
}

// havingAddress returns the pods with an address, of any family.
func havingAddress(pods []corev1.Pod, addr netip.Addr) []*corev1.Pod {
	var found []*corev1.Pod
	for i := range pods {
		network, err := kubeovnv1.ParsePodNetwork(pods[i].Annotations)
		if err == nil && slices.Contains(network.Addresses, addr) {
			found = append(found, &pods[i])
		}
	}
	return found
}

// holders reads the pods that have an address according to the IP objects: it may not be the first address of its pod, and pods of other VPCs may have it. It also reads
// the node whose port has the address. found: a pod with the address is known, so that a list of all IP objects is not worth its size.
func (r *reading) holders(ctx context.Context, address netip.Addr, found bool) error {
	field := "spec.v4IpAddress"
	if address.Is6() {
		field = "spec.v6IpAddress"
	}
	ips := &kubeovnv1.IPList{}
	err := list(ctx, r, trace.ResourceRecords, "", ips, func() {}, client.MatchingFields{field: address.String()})()
	if apierrors.IsBadRequest(err) { // a definition of IPs without the selectable field: Kube-OVN's, or an older one
		if found {
			return nil
		}
		ips = &kubeovnv1.IPList{}
		err = list(ctx, r, trace.ResourceRecords, "", ips, func() {})()
	}
	for i := range ips.Items {
		spec := &ips.Items[i].Spec
		if err != nil || !slices.Contains(ipfamily.ValidAddrs(strings.Split(spec.IPAddress, ",")...), address) {
			continue
		}
		if node := k8s.NodeOf(&ips.Items[i]); node != "" {
			err = errors.Join(get(ctx, r, trace.ResourceNodes, "", node, &r.s.Nodes)(), get(ctx, r, trace.ResourceRecords, "", ips.Items[i].Name, &r.s.Records)())
			continue
		}
		err = get(ctx, r, trace.ResourcePods, spec.Namespace, spec.PodName, &r.s.Pods)()
	}
	return err
}

// isTarget reports whether the destination has one of the addresses.
func (r *reading) isTarget(addresses []netip.Addr) bool {
	return slices.ContainsFunc(r.query.To.Addrs(), func(a netip.Addr) bool { return slices.Contains(addresses, a) })
}

// node reads a node and the record of its addresses.
func (r *reading) node(ctx context.Context, g *requests, name string) {
	g.Go(get(ctx, r, trace.ResourceNodes, "", name, &r.s.Nodes))
	g.Go(get(ctx, r, trace.ResourceRecords, "", kubeovnv1.NodePortName(name), &r.s.Records))
}

// frontsOf reads the objects that may serve the destination: Services and rules. A Service that is named needs no list.
func (r *reading) frontsOf(ctx context.Context, g *requests) {
	if r.query.To.Pod.Name != "" || r.query.To.Service.Name != "" {
		return
	}
	services := &corev1.ServiceList{}
	g.Go(func() error {
		err := list(ctx, r, trace.ResourceServices, "", services, func() {})()
		if r.mayNot(trace.ResourceServices) && r.query.From.Pod.Namespace != "" {
			err = errors.Join(err, list(ctx, r, trace.ResourceServices, r.query.From.Pod.Namespace, services, func() {})())
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		for i := range services.Items {
			if r.concerns(&services.Items[i]) {
				r.s.Services = append(r.s.Services, &services.Items[i])
			}
		}
		return err
	})
	if len(r.query.To.Addrs()) == 0 {
		return
	}
	switches, routers := &kubeovnv1.SwitchLBRuleList{}, &kubeovnv1.RouterLBRuleList{}
	g.Go(list(ctx, r, trace.ResourceSwitchRule, "", switches, func() { r.s.SwitchRules = pointers(switches.Items) }))
	g.Go(list(ctx, r, trace.ResourceRouterRule, "", routers, func() { r.s.RouterRules = pointers(routers.Items) }))
}

// external reads EgressAddresses if the destination is an address, and the objects for external addresses, if the destination is an address or a VPC has a port in an external subnet.
func (r *reading) external(ctx context.Context, g *requests) {
	if len(r.query.To.Addrs()) > 0 && r.once("egress") {
		egresses := &kubeovnv1.EgressAddressList{}
		g.Go(list(ctx, r, trace.ResourceEgresses, "", egresses, func() { r.s.Egresses = pointers(egresses.Items) }))
	}
	connected := slices.ContainsFunc(r.s.Vpcs, func(v *kubeovnv1.Vpc) bool { return len(lookup.ConnectedSubnets(v)) > 0 })
	if len(r.query.To.Addrs()) == 0 && !connected || !r.once("external") {
		return
	}
	eips := &kubeovnv1.OvnEipList{}
	g.Go(list(ctx, r, trace.ResourceEips, "", eips, func() { r.s.Eips = pointers(eips.Items) }))
	for _, kind := range kubeovnv1.NATKinds {
		rules := kind.List.DeepCopyObject().(client.ObjectList)
		g.Go(list(ctx, r, trace.ResourceOf(kind), "", rules, func() { r.s.ExternalRules = append(r.s.ExternalRules, objects(rules)...) }))
	}
}

// inside reads the pods behind the external addresses of the destination.
func (r *reading) inside(ctx context.Context, g *requests) {
	for _, rule := range r.s.ExternalRules {
		for _, address := range trace.Behind(rule, r.query.To.Addrs()) {
			if r.once("inside/" + address.String()) {
				r.address(ctx, g, address)
			}
		}
	}
}

func objects(list client.ObjectList) []client.Object {
	var items []client.Object
	_ = meta.EachListItem(list, func(item runtime.Object) error { // it has no error but the function's
		items = append(items, item.(client.Object))
		return nil
	})
	return items
}

// concerns reports whether a Service may serve the destination of the query: at its address, at one of an OvnEip that it has or requests, or at a node port.
func (r *reading) concerns(service *corev1.Service) bool {
	requested, _ := svc.Request(service)
	if r.isTarget(svc.Addresses(service)) || r.isTarget(svc.EipAddresses(service)) || svc.ByOvnEip(service) && r.isTarget(requested[:]) {
		return true
	}
	return slices.ContainsFunc(service.Spec.Ports, func(p corev1.ServicePort) bool { return p.NodePort != 0 && p.NodePort == int32(r.query.Port) })
}

// around reads what the objects that were read refer to: namespaces, policies, nodes, and events of pods; EndpointSlices of Services.
func (r *reading) around(ctx context.Context, g *requests) {
	r.external(ctx, g)
	nodes := map[string]bool{}
	for _, pod := range r.s.Pods {
		nodes[pod.Spec.NodeName] = true
		g.Go(get(ctx, r, trace.ResourceNetworks, "", pod.Annotations[kubeovnv1.AnnotationProviderNetwork.Key()], &r.s.Networks))
		r.ofNamespace(ctx, g, pod.Namespace)
		for _, reason := range []string{kubeovnv1.ReasonPortMissing, kubeovnv1.ReasonPortRestored} {
			if r.once("events/" + pod.Namespace + "/" + reason) {
				events := &corev1.EventList{}
				g.Go(list(ctx, r, trace.ResourceEvents, pod.Namespace, events, func() { r.addEvents(events.Items) },
					client.MatchingFields{"reason": reason, "involvedObject.kind": "Pod"}))
			}
		}
		if r.once("switch/" + pod.Annotations[kubeovnv1.AnnotationLogicalSwitch.Key()]) {
			r.gatewaysOf(pod, nodes)
		}
	}
	for _, node := range r.s.Nodes {
		nodes[node.Name] = true
	}
	for _, e := range r.s.Egresses {
		nodes[e.Status.Node] = true
	}
	for name := range nodes {
		if name == "" {
			continue
		}
		r.node(ctx, g, name)
		if r.fromNodes() && r.once("host/"+name) {
			pods := &corev1.PodList{}
			g.Go(list(ctx, r, trace.ResourcePods, "", pods, func() { r.addPods(onHost(pods.Items)) }, client.MatchingFields{"spec.nodeName": name}))
		}
	}
	for _, service := range r.s.Services {
		r.slicesOf(ctx, g, service.Namespace, service.Name)
	}
	for _, rule := range r.s.SwitchRules {
		r.rule(ctx, g, rule.Status.Service, rule.Spec.VIP)
	}
	for _, rule := range r.s.RouterRules {
		r.rule(ctx, g, rule.Status.Service, "")
	}
}

// gatewaysOf adds the nodes that host the gateways of a pod's subnet and of its VPC.
func (r *reading) gatewaysOf(pod *corev1.Pod, nodes map[string]bool) {
	for _, s := range r.s.Subnets {
		if s.Name == pod.Annotations[kubeovnv1.AnnotationLogicalSwitch.Key()] {
			for node := range strings.SplitSeq(s.Status.ActivateGateway, ",") {
				nodes[strings.TrimSpace(node)] = true
			}
		}
	}
	for _, v := range r.s.Vpcs {
		if v.Status.Transit != nil && v.Name == pod.Annotations[kubeovnv1.AnnotationLogicalRouter.Key()] {
			nodes[v.Status.Transit.Node] = true
		}
	}
}

// fromNodes reports whether the source may be a node: policies then see the pods on its network.
func (r *reading) fromNodes() bool {
	if r.query.From.Node != "" || len(r.query.From.Addrs()) > 0 {
		return true
	}
	return slices.ContainsFunc(r.s.Pods, func(p *corev1.Pod) bool { return p.Spec.HostNetwork })
}

func onHost(pods []corev1.Pod) []*corev1.Pod {
	return slices.DeleteFunc(pointers(pods), func(p *corev1.Pod) bool { return !p.Spec.HostNetwork })
}

// ofNamespace reads a namespace and its policies.
func (r *reading) ofNamespace(ctx context.Context, g *requests, namespace string) {
	g.Go(get(ctx, r, trace.ResourceNamespaces, "", namespace, &r.s.Namespaces))
	if r.once("policies/" + namespace) {
		policies := &networkingv1.NetworkPolicyList{}
		g.Go(list(ctx, r, trace.ResourcePolicies, namespace, policies, func() {
			for i := range policies.Items {
				r.s.Policies = append(r.s.Policies, &policies.Items[i])
			}
		}))
	}
}

// addEvents keeps the last event of each pod, which has the state of its port.
func (r *reading) addEvents(events []corev1.Event) {
	for i := range events {
		e := &events[i]
		at := slices.IndexFunc(r.s.Events, func(other *corev1.Event) bool {
			return other.InvolvedObject.Namespace == e.InvolvedObject.Namespace && other.InvolvedObject.Name == e.InvolvedObject.Name
		})
		switch {
		case at < 0:
			r.s.Events = append(r.s.Events, e)
		case r.s.Events[at].LastTimestamp.Before(&e.LastTimestamp):
			r.s.Events[at] = e
		}
	}
}
