// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"fmt"
	"math/rand/v2"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// sizes are the numbers of objects and kills of a soak.
type sizes struct{ vpcs, subnets, pods, namespaces, nodes, kills int }

// Numbers of subnets per pool, of pods per IP object that a user makes, and of pods per StatefulSet, which has replicas pods and
// one extra.
const (
	subnetsPerPool     = 5
	podsPerReservation = 20
	podsPerStatefulSet = 20
	replicas           = 3
)

// everybody allows pods of all namespaces to use an object, so that the pods use all objects of the soak.
var everybody = []kubeovnv1.AllowedNamespace{kubeovnv1.AllNamespaces}

// maker makes objects. The same seed makes the same objects.
type maker struct {
	sizes
	random *rand.Rand
}

func (m *maker) chance(percent int) bool { return m.random.IntN(100) < percent }

func vpcName(i int) string       { return fmt.Sprintf("vpc-%d", i) }
func subnetName(i int) string    { return fmt.Sprintf("net-%d", i) }
func namespaceName(i int) string { return fmt.Sprintf("soak-%d", i) }
func nodeName(i int) string      { return fmt.Sprintf("n%d", i) }

// vpcOf is the VPC of a subnet. Every third subnet is in the default VPC.
func (m *maker) vpcOf(subnet int) string {
	if subnet%3 == 0 {
		return kubeovnv1.DefaultVpc
	}
	return vpcName(subnet % m.vpcs)
}

// cidrsOf returns prefixes that are unique within a VPC but shared between VPCs.
func (m *maker) cidrsOf(subnet int) string {
	i := subnet / m.vpcs
	if m.vpcOf(subnet) == kubeovnv1.DefaultVpc {
		i = subnet
	}
	v4, v6 := fmt.Sprintf("10.%d.%d.0/24", 120+i/250, i%250), fmt.Sprintf("fd00:100:%x::/64", i)
	return []string{v4, v6, v4 + "," + v6}[subnet%3]
}

func (m *maker) node(i int) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName(i)},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("192.0.2.%d", 1+i)}, {Type: corev1.NodeInternalIP, Address: fmt.Sprintf("2001:db8::%x", 1+i)},
		}},
	}
}

func (m *maker) namespace(i int) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespaceName(i), Labels: map[string]string{"team": fmt.Sprint(i % 3)}}}
}

// vpc makes a VPC with random routes, policies and namespaces, and with links to the next and the previous VPC. Several VPCs may
// list the same namespace.
func (m *maker) vpc(i int) *kubeovnv1.Vpc {
	v := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: vpcName(i)}, Spec: kubeovnv1.VpcSpec{
		AllowedNamespaces: everybody, ClusterAccess: []kubeovnv1.ClusterAccess{"", kubeovnv1.ClusterAccessServices}[m.random.IntN(2)],
	}}
	hop := func() string { return fmt.Sprintf("10.120.0.%d", 2+m.random.IntN(200)) }
	for range m.random.IntN(4) {
		v.Spec.StaticRoutes = append(v.Spec.StaticRoutes, &kubeovnv1.StaticRoute{
			CIDR: fmt.Sprintf("10.%d.0.0/16", 200+m.random.IntN(4)), NextHopIP: hop(), RouteTable: []string{"", "", "blue"}[m.random.IntN(3)],
		})
	}
	for range m.random.IntN(4) {
		v.Spec.PolicyRoutes = append(v.Spec.PolicyRoutes, &kubeovnv1.PolicyRoute{
			Priority: m.random.IntN(5), Match: "ip4.src == 10.120.0.0/24", Action: kubeovnv1.PolicyRouteReroute, NextHopIP: hop(),
		})
	}
	for range m.random.IntN(3) {
		v.Spec.Namespaces = append(v.Spec.Namespaces, namespaceName(m.random.IntN(m.namespaces)))
	}
	next, before := (i+1)%m.vpcs, (i+m.vpcs-1)%m.vpcs
	link := func(lower, side int) string {
		return fmt.Sprintf("169.254.%d.%d/30,fd00:254:%x::%d/126", lower, side, lower, side)
	}
	if m.chance(80) {
		v.Spec.VpcPeerings = append(v.Spec.VpcPeerings, &kubeovnv1.VpcPeering{RemoteVpc: vpcName(next), LocalConnectIP: link(i, 1)})
	}
	if m.chance(80) && m.vpcs > 2 {
		v.Spec.VpcPeerings = append(v.Spec.VpcPeerings, &kubeovnv1.VpcPeering{RemoteVpc: vpcName(before), LocalConnectIP: link(before, 2)})
	}
	return v
}

func (m *maker) subnet(i int) *kubeovnv1.Subnet {
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: subnetName(i)}}
	s.Spec.Vpc, s.Spec.CIDRBlock = m.vpcOf(i), m.cidrsOf(i)
	if m.chance(30) {
		s.Spec.Namespaces = []string{namespaceName(m.random.IntN(m.namespaces))}
	}
	if m.chance(10) {
		s.Spec.NamespaceSelectors = []metav1.LabelSelector{{MatchLabels: map[string]string{"team": fmt.Sprint(m.random.IntN(3))}}}
	}
	s.Spec.AllowedNamespaces = everybody
	s.Spec.PortSecurity = []kubeovnv1.PortSecurity{"", kubeovnv1.PortSecurityEnforced, kubeovnv1.PortSecurityRequested}[m.random.IntN(3)]
	s.Spec.Private, s.Spec.EnableDHCP, s.Spec.NATOutgoing = m.chance(20), m.chance(20), m.chance(50)
	if m.chance(10) {
		s.Spec.RouteTable = "blue"
	}
	return s
}

// pod makes a pod. Most pods name their subnet, some name a pool, and the others get the subnet of their namespace.
func (m *maker) pod(i int) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespaceName(i % m.namespaces), Name: fmt.Sprintf("pod-%d", i)},
		Spec:       corev1.PodSpec{NodeName: nodeName(m.random.IntN(m.nodes)), Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	switch {
	case m.chance(10):
		p.Annotations = map[string]string{kubeovnv1.AnnotationIPPool.Key(): poolName(m.random.IntN(m.subnets / subnetsPerPool))}
	case m.chance(80):
		p.Annotations = map[string]string{kubeovnv1.AnnotationLogicalSwitch.Key(): subnetName(m.random.IntN(m.subnets))}
	}
	return p
}

// pool makes a pool of addresses in the middle of its subnet. Some pools are for a namespace.
func (m *maker) pool(i int) *kubeovnv1.IPPool {
	p := &kubeovnv1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: poolName(i)}}
	p.Spec.Subnet, p.Spec.EnableAddressSet = subnetName(i*subnetsPerPool), m.chance(50)
	for cidr := range strings.SplitSeq(m.cidrsOf(i*subnetsPerPool), ",") {
		network := strings.TrimSuffix(strings.TrimSuffix(cidr, "0/24"), "/64")
		p.Spec.IPs = append(p.Spec.IPs, network+"100.."+network+"119")
	}
	if m.chance(20) {
		p.Spec.Namespaces, p.Spec.AllowedNamespaces = []string{namespaceName(m.random.IntN(m.namespaces))}, everybody
	}
	return p
}

func poolName(i int) string { return fmt.Sprintf("pool-%d", i) }

// reservation makes an IP object for a pod that may or may not exist, either permanent or until the pod is deleted. The controller
// chooses the address.
func (m *maker) reservation(i int) *kubeovnv1.IP {
	pod := m.pod(i)
	ip := &kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: pod.Name + "." + pod.Namespace}}
	if m.chance(50) {
		ip.Labels = map[string]string{kubeovnv1.LabelReserved: "true"}
	}
	ip.Spec.PodName, ip.Spec.Namespace, ip.Spec.Subnet = pod.Name, pod.Namespace, subnetName(m.random.IntN(m.subnets))
	return ip
}

// statefulSet makes a StatefulSet and its pods, as the StatefulSet controller would.
func (m *maker) statefulSet(i int) []client.Object {
	meta := metav1.ObjectMeta{Namespace: namespaceName(i % m.namespaces), Name: fmt.Sprintf("set-%d", i)}
	labels := map[string]string{"set": meta.Name}
	objects := []client.Object{&appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{
		Replicas: new(int32(replicas)), Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
	}}}
	for ordinal := range replicas + 1 { // one more than spec.replicas
		pod := m.pod(i)
		pod.Name, pod.Labels = fmt.Sprintf("%s-%d", meta.Name, ordinal), labels
		pod.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: "apps/v1", Kind: "StatefulSet", Name: meta.Name, UID: types.UID(meta.Name), Controller: new(true),
		}}
		objects = append(objects, pod)
	}
	return objects
}

// all makes every object, in random order.
func (m *maker) all() []client.Object {
	var objects []client.Object
	for i := range m.vpcs {
		objects = append(objects, m.vpc(i))
	}
	for i := range m.subnets {
		objects = append(objects, m.subnet(i))
	}
	for i := range m.pods {
		objects = append(objects, m.pod(i))
		if i%podsPerReservation == 0 {
			objects = append(objects, m.reservation(i))
		}
		if i%podsPerStatefulSet == 0 {
			objects = append(objects, m.statefulSet(i/podsPerStatefulSet)...)
		}
	}
	for i := range m.subnets / subnetsPerPool {
		objects = append(objects, m.pool(i))
	}
	m.random.Shuffle(len(objects), func(i, j int) { objects[i], objects[j] = objects[j], objects[i] })
	return objects
}
