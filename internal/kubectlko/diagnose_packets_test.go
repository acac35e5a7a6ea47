// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/netprobe"
	"github.com/kiln-net/kiln/internal/testing/must"
)

// subnetNetwork is a cluster with the Subnet "shop", and a run of `kubectl ko diagnose subnet` in it.
type subnetNetwork struct {
	*network
	run *subnetRun
	// silent is true if gateways do not answer.
	silent bool
	// tried are the pods that sent packets, by name.
	tried map[string]bool
}

func newSubnetNetwork(t *testing.T, in string, spec kubeovnv1.SubnetSpec) *subnetNetwork {
	n := &subnetNetwork{network: newNetwork(t), tried: map[string]bool{}}
	n.prefixes["shop"] = []string{"10.30.0.%d", "fd00:10:30::%d"}
	spec.CIDRBlock = "10.30.0.0/24,fd00:10:30::/112"
	n.makeValid("shop", spec)
	n.runIn(in)
	return n
}

// runIn makes a new run with pods in a namespace.
func (n *subnetNetwork) runIn(namespace string) {
	n.run = n.newSubnetRun(podRunFlags{maxNodes: 8}, namespace)
	n.run.startTime, n.run.removal, n.run.probe = 30*time.Second, 30*time.Second, n.answerInSubnet
}

// makeValid creates a Subnet whose spec was found valid.
func (n *network) makeValid(name string, spec kubeovnv1.SubnetSpec) {
	n.Helper()
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	n.make(s)
	s.Status.Conditions = []kubeovnv1.Condition{{Type: kubeovnv1.ConditionValidated, Status: metav1.ConditionTrue, ObservedGeneration: s.Generation, LastTransitionTime: metav1.Now()}}
	must.Succeed(n.world, n.objects.Status().Update(n.Context(), s))
}

// makePinger creates a running pod of kube-ovn-pinger.
func (n *network) makePinger(node string) {
	n.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: pinger + "-" + node, Labels: map[string]string{componentLabel: pinger}},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "pinger", Image: "kiln"}}},
	}
	must.Succeed(n.world, n.objects.Create(n.Context(), pod))
	must.Succeed(n.world, n.start(n.Context(), pod))
}

// answerInSubnet plays the client in a pod.
func (n *subnetNetwork) answerInSubnet(_ context.Context, from *corev1.Pod, targets []netprobe.Target) ([]netprobe.Answer, error) {
	answers := make([]netprobe.Answer, len(targets))
	n.mu.Lock()
	defer n.mu.Unlock()
	n.tried[from.Name] = true
	for i, t := range targets {
		address, err := netip.ParseAddr(t.Address)
		if port, other := netip.ParseAddrPort(t.Address); err != nil && other == nil {
			address = port.Addr()
		}
		to := n.pods[address]
		switch {
		case to == nil && (n.silent || !slices.Contains([]string{"10.30.0.1", "fd00:10:30::1"}, t.Address)):
			answers[i].Error = "no reply"
		case to != nil && n.broken(from, to):
			answers[i].Error = "i/o timeout"
		}
	}
	return answers, nil
}

// leftovers are the objects of the run that exist.
func (n *subnetNetwork) leftovers() (names []string) {
	objects := []client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n.run.name}}}
	for _, pod := range n.run.wanted {
		objects = append(objects, pod.DeepCopy())
	}
	for _, o := range objects {
		if err := n.objects.Get(context.Background(), client.ObjectKeyFromObject(o), o); !apierrors.IsNotFound(err) {
			names = append(names, o.GetName())
		}
	}
	return names
}

// says checks that the output has lines, and that nothing is left.
func (n *subnetNetwork) says(lines ...string) {
	n.Helper()
	for _, line := range lines {
		if !strings.Contains(n.out.String(), line) {
			n.Errorf("the output lacks %q", line)
		}
	}
	if left := n.leftovers(); len(left) > 0 {
		n.Errorf("objects are left: %v", left)
	}
	if n.Failed() {
		n.Log(n.out)
	}
}

func TestPacketsOfASubnet(t *testing.T) {
	n := newSubnetNetwork(t, "", kubeovnv1.SubnetSpec{})
	n.makePinger("node-1")
	n.makePinger("node-9") // without a pod of the run
	must.Succeed(t, n.run.run(t.Context(), "shop"))
	n.says(
		"ok    pods start: 5,", "ok    kubelet probe → pod IPv4: 3,", "ok    pods have addresses of the subnet IPv6: 3,", "ok    pod → gateway, icmp IPv6: 2,", "ok    pod → pod, same node IPv4: 3,",
		"ok    pod → pod, across nodes, icmp IPv4: 2,", "ok    pod → pod, across nodes, tcp IPv6: 2,", "ok    node → pod, udp IPv6: 4,", "ok    pod of kube-ovn-pinger → pod IPv4: 6,", "checks passed",
	)
	if !n.tried["kube-ovn-pinger-node-1"] || n.tried["kube-ovn-pinger-node-9"] {
		t.Errorf("packets of %v", n.tried)
	}
}

func TestPacketsOfASubnetThatAreLost(t *testing.T) {
	n := newSubnetNetwork(t, "", kubeovnv1.SubnetSpec{})
	n.silent = true
	n.prefixes["shop"] = []string{"10.30.0.%d", "fd00:10:31::%d"} // of another subnet
	n.broken = func(from, to *corev1.Pod) bool { return from.Spec.NodeName == "node-2" && to.Spec.NodeName == "node-1" }
	err := n.run.run(t.Context(), "shop")
	if err == nil || !strings.Contains(err.Error(), "node-2 → node-1") || strings.Contains(err.Error(), "node-1 → node-2") {
		t.Errorf("the error is %v", err)
	}
	n.says(
		"FAIL  pods have addresses of the subnet IPv6: 3 of 3", "FAIL  pod → gateway, icmp IPv4: 2 of 2", "FAIL  pod → pod, across nodes, udp IPv4: 1 of 2\n        node-2 → node-1: pod pod-1 → pod pod-0",
		"FAIL  node → pod, tcp IPv4: 1 of 4", "ok    pods have addresses of the subnet IPv4", "-     pod of kube-ovn-pinger → pod: not checked: no pod of kube-ovn-pinger runs on these nodes", "kubectl ko trace",
	)
}

// TestSubnetsThatOthersDoNotReach: nodes reach pods of a private subnet, and neither nodes nor pods of other VPCs reach pods of a custom VPC.
func TestSubnetsThatOthersDoNotReach(t *testing.T) {
	for _, tt := range []struct {
		name string
		spec kubeovnv1.SubnetSpec
		want []string
	}{
		{
			"private", kubeovnv1.SubnetSpec{Private: true, AllowedNamespaces: []kubeovnv1.AllowedNamespace{kubeovnv1.AllNamespaces}},
			[]string{"ok    node → pod, tcp IPv4: 4,", "-     pod of kube-ovn-pinger → pod: not checked: the subnet is private"},
		},
		{
			"of a custom VPC", kubeovnv1.SubnetSpec{Vpc: "tenant"},
			[]string{"ok    pods start: 3,", "-     node → pod, tcp: not checked: nodes reach no pods of a custom VPC", "-     pod of kube-ovn-pinger → pod: not checked: pods of other VPCs"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newSubnetNetwork(t, "", tt.spec)
			n.make(&kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "tenant"}, Spec: kubeovnv1.VpcSpec{AllowedNamespaces: []kubeovnv1.AllowedNamespace{kubeovnv1.AllNamespaces}}})
			n.makePinger("node-1")
			must.Succeed(t, n.run.run(t.Context(), "shop"))
			n.says(append(tt.want, "ok    pod → pod, across nodes, udp IPv6: 2,")...)
			if n.tried["kube-ovn-pinger-node-1"] {
				t.Error("a pod of kube-ovn-pinger sent packets")
			}
		})
	}
}

// makeUnderlay creates a physical network with the given nodes.
func (n *network) makeUnderlay(ready []string, conditions ...kubeovnv1.ProviderNetworkCondition) {
	n.Helper()
	network := &kubeovnv1.ProviderNetwork{ObjectMeta: metav1.ObjectMeta{Name: "net1"}, Spec: kubeovnv1.ProviderNetworkSpec{DefaultInterface: "eth1"}}
	n.make(network)
	network.Status = kubeovnv1.ProviderNetworkStatus{ReadyNodes: ready, Conditions: conditions}
	must.Succeed(n.world, n.objects.Status().Update(n.Context(), network))
	n.make(&kubeovnv1.Vlan{ObjectMeta: metav1.ObjectMeta{Name: "office"}, Spec: kubeovnv1.VlanSpec{ID: 30, Provider: "net1"}})
}

func TestPacketsOfAnUnderlaySubnet(t *testing.T) {
	n := newSubnetNetwork(t, "", kubeovnv1.SubnetSpec{Vlan: "office", Gateway: "10.30.0.254,fd00:10:30::fe"})
	n.makePinger("node-1")
	n.makeUnderlay([]string{"node-1"}, kubeovnv1.ProviderNetworkCondition{Node: "node-2", Condition: kubeovnv1.Condition{
		Type: kubeovnv1.ConditionReady, Status: metav1.ConditionFalse, Reason: "NoInterface", Message: "the node has no interface eth1", LastTransitionTime: metav1.Now(),
	}})
	must.Succeed(t, n.run.run(t.Context(), "shop"))
	n.says(
		"-     left out: node-2: the node has no interface eth1\n", "ok    pods start: 2,", "-     pod → gateway, icmp IPv4: no answer: routers of physical networks", "ok    pod → pod, same node IPv6: 3,",
		"-     node → pod, tcp: not checked: nodes reach the pods by routers of the physical network", "-     pod of kube-ovn-pinger → pod: not checked",
	)
}

func TestAnUnderlaySubnetWithoutNodes(t *testing.T) {
	n := newSubnetNetwork(t, "", kubeovnv1.SubnetSpec{Vlan: "office"})
	n.makeUnderlay(nil)
	if err := n.run.run(t.Context(), "shop"); err == nil || !strings.Contains(err.Error(), "no node is ready in ProviderNetwork net1") {
		t.Errorf("the error is %v", err)
	}
	n.says("-     left out: node-1: ProviderNetwork net1 does not select it\n")
}

// TestALogicalGateway: OVN's router is the gateway, and nodes reach the pods through it.
func TestALogicalGateway(t *testing.T) {
	n := newSubnetNetwork(t, "", kubeovnv1.SubnetSpec{Vlan: "office", LogicalGateway: true})
	n.makeUnderlay([]string{"node-1", "node-2"})
	n.makePinger("node-1")
	must.Succeed(t, n.run.run(t.Context(), "shop"))
	n.says("ok    pod → gateway, icmp IPv4: 2,", "ok    node → pod, tcp IPv4: 4,", "ok    pod of kube-ovn-pinger → pod IPv6: 6,")
}

// TestPacketsFromANamespace: the pods are in a namespace that the subnet lists, and only they are deleted there.
func TestPacketsFromANamespace(t *testing.T) {
	n := newSubnetNetwork(t, "default", kubeovnv1.SubnetSpec{Private: true, Namespaces: []string{"default"}})
	other := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "other", Labels: map[string]string{roleLabel: "pod-0"}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	n.make(other)
	must.Succeed(t, n.run.run(t.Context(), "shop"))
	n.says("ok    pods start: 5,", "ok    pod → pod, across nodes, tcp IPv4: 2,", "starting pods on 2 nodes, in namespace default")
	for _, pod := range n.run.wanted {
		if pod.Spec.HostNetwork == (pod.Namespace == "default") {
			t.Errorf("pod %s is in namespace %s", pod.Name, pod.Namespace)
		}
	}
	must.Succeed(t, n.objects.Get(t.Context(), client.ObjectKeyFromObject(other), other))
	n.runIn("default")
	n.run.keep = true
	must.Succeed(t, n.run.run(t.Context(), "shop"))
	if want := "kubectl -n default delete pods " + n.run.name; len(n.leftovers()) != 6 || !strings.Contains(n.out.String(), want) {
		t.Errorf("%v is left, and the output lacks %q: %s", n.leftovers(), want, n.out)
	}
	must.Succeed(t, n.run.remove(t.Context()))
	n.says()
}

// Users of the namespace can delete a pod of the run, and create one with its name.
func TestAPodThatReplacesOneOfTheRunIsNotOfTheRun(t *testing.T) {
	n := newSubnetNetwork(t, "default", kubeovnv1.SubnetSpec{Private: true, Namespaces: []string{"default"}})
	pod := func() *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: n.run.name + "-pod-0", Labels: map[string]string{roleLabel: "pod-0"}}, Spec: corev1.PodSpec{
			NodeName: "node-1", Containers: []corev1.Container{{Name: "c", Image: "i"}},
		}}
	}
	wanted := pod()
	n.run.wanted = []*corev1.Pod{wanted}
	must.Succeed(t, n.run.createPods(t.Context()))
	first := pod()
	must.Succeed(t, n.objects.Delete(t.Context(), first, client.GracePeriodSeconds(0)))
	other := pod()
	must.Succeed(t, n.objects.Create(t.Context(), other))
	n.run.startTime = time.Second
	must.Succeed(t, n.run.await(t.Context()))
	if len(n.run.running) > 0 || !strings.Contains(n.out.String(), "it does not exist") {
		t.Errorf("the pods of the run are %v: %s", n.run.running, n.out)
	}
	must.Succeed(t, n.run.remove(t.Context()))
	must.Succeed(t, n.objects.Get(t.Context(), client.ObjectKeyFromObject(other), other))
}

func TestSubnetsWithoutPods(t *testing.T) {
	for _, tt := range []struct {
		name, in string
		spec     kubeovnv1.SubnetSpec
		open     bool
		want     string // in the error; pods are admitted if it is empty
	}{
		{name: "open", spec: kubeovnv1.SubnetSpec{}},
		{name: "bound to a namespace, and open to others", spec: kubeovnv1.SubnetSpec{Namespaces: []string{"default"}}},
		{
			name: "private", spec: kubeovnv1.SubnetSpec{Private: true, Namespaces: []string{"default", "missing"}},
			want: "subnet shop is private and does not list namespace NAMESPACE: add it to namespaces or allowedNamespaces of the subnet, and repeat with --in=NAMESPACE. These may use the subnet already: default",
		},
		{name: "private, membership open", spec: kubeovnv1.SubnetSpec{Private: true}, open: true},
		{name: "private, for a namespace that it lists", spec: kubeovnv1.SubnetSpec{Private: true, AllowedNamespaces: []kubeovnv1.AllowedNamespace{"default"}}, in: "default"},
		{
			name: "private, for another namespace", spec: kubeovnv1.SubnetSpec{Private: true, Namespaces: []string{"kube-public"}}, in: "default",
			want: "subnet shop is private and does not list namespace default: add it",
		},
		{name: "for a namespace that does not exist", in: "missing", want: "read the namespace of --in"},
		{
			name: "private, selecting every namespace", spec: kubeovnv1.SubnetSpec{Private: true, NamespaceSelectors: []metav1.LabelSelector{{MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpExists},
			}}}},
		},
		{
			name: "of a custom VPC", spec: kubeovnv1.SubnetSpec{Vpc: "tenant"},
			want: "VPC tenant does not list namespace NAMESPACE: add it to namespaces or allowedNamespaces of the VPC, and repeat with --in=NAMESPACE. These may use the subnet already: default, kube-public",
		},
		{name: "of a custom VPC, for a namespace that it lists", spec: kubeovnv1.SubnetSpec{Vpc: "tenant"}, in: "kube-public"},
		{
			name: "of a custom VPC that does not exist", spec: kubeovnv1.SubnetSpec{Vpc: "missing"},
			want: "VPC missing does not exist",
		},
		{
			name: "external subnet of a VPC", spec: kubeovnv1.SubnetSpec{Vlan: "office"},
			want: "subnet shop is an external subnet of a VPC and does not list namespace NAMESPACE",
		},
		{name: "of an attachment network", spec: kubeovnv1.SubnetSpec{Provider: "net.default.ovn"}, want: "subnet shop is of provider net.default.ovn"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newSubnetNetwork(t, tt.in, tt.spec)
			n.make(&kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "tenant"}, Spec: kubeovnv1.VpcSpec{
				Namespaces: []string{"default"}, AllowedNamespaces: []kubeovnv1.AllowedNamespace{"kube-public"},
			}})
			n.make(&kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "external"}, Spec: kubeovnv1.VpcSpec{ExtraExternalSubnets: []string{"shop"}}})
			if tt.open {
				oc := must.Value(n.cluster(t.Context()))
				oc.Spec.Tenancy.Membership = v1alpha1.MembershipOpen
				must.Succeed(t, n.objects.Update(t.Context(), oc))
			}
			err := n.run.placement(t.Context(), "shop")
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("the error is %v, want one with %q", err, tt.want)
			}
		})
	}
}

// TestDiagnoseSubnet: without packets the command reads only, and no pod can be in join.
func TestDiagnoseSubnet(t *testing.T) {
	n := newSubnetNetwork(t, "", kubeovnv1.SubnetSpec{Private: true})
	n.makeValid(kubeovnv1.JoinSubnet, kubeovnv1.SubnetSpec{CIDRBlock: "100.64.0.0/16"})
	for args, packets := range map[string]bool{"shop": true, "shop --packets=false": false, "join": false, "missing": false} {
		said, err := n.ko(append([]string{"diagnose", "subnet"}, strings.Fields(args)...)...)
		if err == nil || strings.Contains(err.Error(), "does not list namespace NAMESPACE") != packets {
			t.Errorf("%s: error %v; it said %s", args, err, said)
		}
		if known := args != "missing"; known != strings.Contains(said, "Validated: True") || known == strings.Contains(fmt.Sprint(err), "read the Subnet") {
			t.Errorf("%s: error %v; it said %s", args, err, said)
		}
	}
}
