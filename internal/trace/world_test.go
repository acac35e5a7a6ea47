// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
)

// cluster is a snapshot that tests change. It has two nodes, the default subnets, and namespaces shop and bank.
type cluster struct {
	Snapshot
	next int
}

func newCluster() *cluster {
	c := &cluster{next: 9}
	c.Cluster = &v1alpha1.OVNCluster{}
	c.vpc(kubeovnv1.DefaultVpc, kubeovnv1.VpcSpec{})
	c.newSubnet(kubeovnv1.DefaultSubnet, "10.16.0.0/16,fd00:10:16::/112", kubeovnv1.SubnetSpec{NATOutgoing: true})
	c.newSubnet(kubeovnv1.JoinSubnet, "100.64.0.0/16,fd00:100:64::/112", kubeovnv1.SubnetSpec{})
	for i, name := range []string{"n1", "n2"} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"node": name}}}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		c.Nodes = append(c.Nodes, node)
		record := &kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: kubeovnv1.NodePortName(name), Annotations: map[string]string{
			kubeovnv1.AnnotationNodeAddresses.Key(): fmt.Sprintf("172.18.0.%d,fc00:172::%d", i+2, i+2),
		}}}
		record.Spec.NodeName, record.Spec.IPAddress = name, fmt.Sprintf("100.64.0.%d,fd00:100:64::%d", i+2, i+2)
		c.Records = append(c.Records, record)
	}
	for _, name := range []string{"shop", "bank"} {
		c.Namespaces = append(c.Namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}}})
	}
	c.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd00:10:96::/112")}
	return c
}

func valid() []metav1.Condition {
	return []metav1.Condition{{Type: kubeovnv1.ConditionValidated, Status: metav1.ConditionTrue}}
}

func (c *cluster) vpc(name string, spec kubeovnv1.VpcSpec) *kubeovnv1.Vpc {
	v := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	c.Vpcs = append(c.Vpcs, v)
	return v
}

func (c *cluster) newSubnet(name, cidrs string, spec kubeovnv1.SubnetSpec) *kubeovnv1.Subnet {
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	s.Spec.CIDRBlock, s.Status.Conditions = cidrs, valid()
	var gateways []string
	for text := range strings.SplitSeq(cidrs, ",") {
		gateways = append(gateways, netip.MustParsePrefix(text).Addr().Next().String())
	}
	s.Spec.Gateway = strings.Join(gateways, ",")
	c.Subnets = append(c.Subnets, s)
	return s
}

// run adds a pod with labels app=<name> in a subnet.
func (c *cluster) run(namespace, name, node, subnet string) *corev1.Pod {
	c.next++
	s := c.subnet(subnet)
	network := kubeovnv1.PodNetwork{UID: types.UID(name), Allocated: true, Routed: true, LogicalSwitch: subnet, LogicalRouter: vpcOf(s), MAC: []byte{2, 0, 0, 0, 0, byte(c.next)}}
	for text := range strings.SplitSeq(s.Spec.CIDRBlock, ",") {
		p := netip.MustParsePrefix(text)
		a := p.Addr()
		for range c.next {
			a = a.Next()
		}
		network.CIDRs, network.Addresses, network.Gateways = append(network.CIDRs, p), append(network.Addresses, a), append(network.Gateways, p.Addr().Next())
	}
	if s.Spec.Vlan != "" {
		network.ProviderNetwork = "net1"
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: types.UID(name), Labels: map[string]string{"app": name}, Annotations: network.Annotations(),
	}}
	pod.Spec.NodeName = node
	pod.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 80}}}}
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	c.Pods = append(c.Pods, pod)
	return pod
}

func (c *cluster) runOnHost(namespace, name, node string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name), Labels: map[string]string{"app": name}}}
	pod.Spec.NodeName, pod.Spec.HostNetwork = node, true
	pod.Status.Phase = corev1.PodRunning
	c.Pods = append(c.Pods, pod)
	return pod
}

// serve adds a Service of a pod, with port 80.
func (c *cluster) serve(pod *corev1.Pod, number int) *corev1.Service {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
	service.Spec.ClusterIPs = []string{fmt.Sprintf("10.96.0.%d", number), fmt.Sprintf("fd00:10:96::%d", number)}
	service.Spec.ClusterIP = service.Spec.ClusterIPs[0]
	service.Spec.Selector = pod.Labels
	service.Spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80, NodePort: 30080, TargetPort: intstr.FromInt(8080)}}
	if vpc := pod.Annotations[kubeovnv1.AnnotationLogicalRouter.Key()]; vpc != kubeovnv1.DefaultVpc {
		service.Annotations = map[string]string{kubeovnv1.AnnotationVpc.Key(): vpc}
	}
	c.Services = append(c.Services, service)
	c.endpoints(service, pod)
	return service
}

// endpoints makes pods the only endpoints of a Service.
func (c *cluster) endpoints(service *corev1.Service, pods ...*corev1.Pod) {
	c.Slices = nil
	for family, of := range map[discoveryv1.AddressType]int{discoveryv1.AddressTypeIPv4: 0, discoveryv1.AddressTypeIPv6: 1} {
		name, port := "http", int32(8080)
		slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
			Namespace: service.Namespace, Name: service.Name + string(family), Labels: map[string]string{discoveryv1.LabelServiceName: service.Name},
		}, AddressType: family, Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port}}}
		for _, pod := range pods {
			network, _ := kubeovnv1.ParsePodNetwork(pod.Annotations)
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{network.Addresses[of].String()}, NodeName: &pod.Spec.NodeName,
				TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: pod.Name, Namespace: pod.Namespace},
			})
		}
		c.Slices = append(c.Slices, slice)
	}
}

// isolate adds a NetworkPolicy without rules.
func (c *cluster) isolate(namespace, name string, direction networkingv1.PolicyType) *networkingv1.NetworkPolicy {
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	np.Spec.PolicyTypes = []networkingv1.PolicyType{direction}
	c.Policies = append(c.Policies, np)
	return np
}

func podEnd(namespace, name string) End {
	return End{Pod: types.NamespacedName{Namespace: namespace, Name: name}}
}

func serviceEnd(namespace, name string) End {
	return End{Service: types.NamespacedName{Namespace: namespace, Name: name}}
}

func tcp(from, to End, port uint16) Query {
	return Query{From: from, To: to, Protocol: TCP, Port: port}
}

func addrEnd(text string) End { return End{Address: netip.MustParseAddr(text)} }

// text is the answer as in an error message of a test.
func (a *Answer) text() string {
	var b strings.Builder
	for _, t := range a.Traces {
		fmt.Fprintf(&b, "%s %s -> %s: %s\n", t.Family, t.Source, t.Destination, t.Verdict)
		for _, s := range t.Steps {
			fmt.Fprintf(&b, "  %s: %s\n", s.Effect, s.Text)
		}
		if t.DecidedBy != nil {
			fmt.Fprintf(&b, "  by %s %s; change: %s\n", t.DecidedBy, t.DecidedBy.Rule, t.Change)
		}
	}
	return b.String()
}

// egress adds an EgressAddress on nodes for the pods of namespaces with a label. The first one is the oldest.
func (c *cluster) egress(name, label string) *kubeovnv1.EgressAddress {
	key, value, _ := strings.Cut(label, "=")
	e := &kubeovnv1.EgressAddress{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.Unix(int64(len(c.Egresses)), 0)},
		Spec: kubeovnv1.EgressAddressSpec{
			Vpc: kubeovnv1.DefaultVpc, NamespaceSelector: metav1.LabelSelector{MatchLabels: map[string]string{key: value}},
			Addresses: []string{"192.0.2.40", "2001:db8::40"}, NodeSelector: &metav1.LabelSelector{},
		},
	}
	c.Egresses = append(c.Egresses, e)
	return e
}
