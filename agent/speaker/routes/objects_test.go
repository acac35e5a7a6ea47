// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

const here, elsewhere = "node-a", "node-b"

// The objects of the tests. Each function returns a new one.

func node(change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: here}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}
	for _, c := range change {
		c(n)
	}
	return n
}

func other(change ...func(*corev1.Node)) *corev1.Node {
	n := node(change...)
	n.Name, n.Status.Addresses[0].Address = elsewhere, "192.0.2.2"
	return n
}

func cordoned(n *corev1.Node) { n.Spec.Unschedulable = true }

func notReady(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }

func noNetwork(n *corev1.Node) {
	n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue})
}

func labeled(n *corev1.Node) { n.Labels = map[string]string{"bgp": "true"} }

func bgp(value string) map[string]string {
	return map[string]string{kubeovnv1.AnnotationBGP.Key(): value}
}

func webSubnet(value string, change ...func(*kubeovnv1.Subnet)) *kubeovnv1.Subnet {
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "web", Annotations: bgp(value)}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.1.0.0/24,fd00::/112"}}
	s.Status.Conditions = []metav1.Condition{{Type: kubeovnv1.ConditionValidated, Status: metav1.ConditionTrue}}
	for _, c := range change {
		c(s)
	}
	return s
}

func extra(cidr string, change ...func(*kubeovnv1.Subnet)) *kubeovnv1.Subnet {
	return webSubnet("", append([]func(*kubeovnv1.Subnet){func(s *kubeovnv1.Subnet) { s.Name, s.Spec.CIDRBlock = "extra", cidr }}, change...)...)
}

func rejected(s *kubeovnv1.Subnet) { s.Status.Conditions[0].Status = metav1.ConditionFalse }

func newPod(name, on string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{NodeName: on}}
	p.Annotations = kubeovnv1.PodNetwork{
		UID: p.UID, Allocated: true, LogicalSwitch: "web", LogicalRouter: kubeovnv1.DefaultVpc,
		Addresses: []netip.Addr{netip.MustParseAddr("10.1.0." + name), netip.MustParseAddr("fd00::" + name)},
	}.Annotations()
	for _, c := range change {
		c(p)
	}
	return p
}

func annotated(value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations[kubeovnv1.AnnotationBGP.Key()] = value }
}

func webService(value string, change ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", Annotations: bgp(value)}}
	s.Spec.ClusterIPs = []string{"10.96.0.7"}
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.9"}}
	for _, c := range change {
		c(s)
	}
	return s
}

func externalIP(address string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.ExternalIPs = []string{address} }
}

func dualStack(s *corev1.Service) { s.Spec.ClusterIPs = []string{"10.96.0.7", "fd96::7"} }

func externalLocal(s *corev1.Service) {
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
}

func slice(endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: endpoints,
	}
}

func slice6(endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	s := slice(endpoints...)
	s.Name, s.AddressType = "web-6", discoveryv1.AddressTypeIPv6
	return s
}

func apiServers(address string) *discoveryv1.EndpointSlice {
	s := slice(discoveryv1.Endpoint{Addresses: []string{address}})
	s.Namespace, s.Name, s.Labels = "default", "kubernetes", map[string]string{discoveryv1.LabelServiceName: "kubernetes"}
	return s
}

func endpoint(on string, ready bool) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{NodeName: &on, Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &ready}}
}
