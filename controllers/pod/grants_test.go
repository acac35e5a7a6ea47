// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/controllers/pod"
	"github.com/kiln-net/kiln/controllers/pod/ipobject"
	"github.com/kiln-net/kiln/internal/address/grants"
)

func (w world) vpc(name string, spec kubeovnv1.VpcSpec) *kubeovnv1.Vpc {
	v := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	w.Create(v)
	return v
}

// A pod gets an address of a custom VPC, a private subnet or a pool with namespaces only when the object lists its namespace, and as soon as it does.
func TestMembershipIsGranted(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"member", "pooled", "attacker"} {
		w.namespace(name, nil)
	}
	w.subnet("ovn-default", "10.16.0.0/24")
	vpc := w.vpc("blue", kubeovnv1.VpcSpec{Namespaces: []string{"member"}})
	inBlue := func(s *kubeovnv1.SubnetSpec) { s.Vpc = "blue" }
	private := func(s *kubeovnv1.SubnetSpec) { s.Private, s.Namespaces = true, []string{"member"} }
	w.subnet("blue-net", "10.17.0.0/24", inBlue)
	shut := w.subnet("shut", "10.18.0.0/24", private)
	w.subnet("blue-shut", "10.19.0.0/24", inBlue, private)
	pool := &kubeovnv1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "bound"}, Spec: kubeovnv1.IPPoolSpec{
		Subnet: "ovn-default", Namespaces: []string{"pooled"}, IPs: []string{"10.16.0.100..10.16.0.110"},
	}}
	w.Create(pool)
	w.Create(&kubeovnv1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "of-blue"}, Spec: kubeovnv1.IPPoolSpec{Subnet: "blue-net", IPs: []string{"10.17.0.100"}}})
	process := w.start()

	denied := map[string]struct {
		annotations []string
		why         string
	}{
		"vpc":       {[]string{"logical_switch", "blue-net"}, "VPC blue does not list namespace attacker: add it to namespaces or allowedNamespaces of the VPC"},
		"private":   {[]string{"logical_switch", "shut"}, "subnet shut is private and does not list namespace attacker"},
		"both":      {[]string{"logical_switch", "blue-shut"}, "VPC blue does not list namespace attacker"},
		"pool":      {[]string{"ip_pool", "bound"}, "IPPool bound does not list namespace attacker"},
		"vpc-pool":  {[]string{"ip_pool", "of-blue"}, "VPC blue does not list namespace attacker"},
		"of-pool":   {[]string{"ip_address", "10.16.0.105"}, "address 10.16.0.105 is taken by IPPool bound"},
		"from-pool": {[]string{"ip_pool", "10.16.0.106,10.16.0.107"}, "address 10.16.0.106 is taken by IPPool bound"},
	}
	for name, attempt := range denied {
		p := newPod("attacker", name, attempt.annotations...)
		w.Create(p)
		w.warned(p, attempt.why)
		if member := map[string]string{"vpc": "member", "private": "member", "both": "member", "pool": "pooled"}[name]; member != "" {
			w.pod(member, name, attempt.annotations...)
		}
	}
	for name := range denied {
		p := newPod("attacker", name)
		if w.Get(p); kubeovnv1.IsPublished(p) {
			t.Errorf("pod %s of a namespace that nothing lists has address %s", name, address(p))
		}
	}

	w.Change(vpc, func() { vpc.Spec.AllowedNamespaces = []kubeovnv1.AllowedNamespace{"attacker"} })
	w.allocated(newPod("attacker", "vpc"))
	w.allocated(newPod("attacker", "vpc-pool"))
	both := newPod("attacker", "both")
	w.Get(both)
	w.warned(both, "subnet blue-shut is private and does not list namespace attacker")
	w.Change(shut, func() { shut.Spec.AllowedNamespaces = []kubeovnv1.AllowedNamespace{"*"} })
	w.InForce(shut, process)
	w.allocated(newPod("attacker", "private"))
	w.Change(pool, func() { pool.Spec.AllowedNamespaces = []kubeovnv1.AllowedNamespace{"attacker"} })
	w.allocated(newPod("attacker", "pool"))

	// A pod keeps its address when its namespace is removed from the list.
	w.Change(vpc, func() { vpc.Spec.AllowedNamespaces = nil })
	late := newPod("attacker", "late", "logical_switch", "blue-net")
	w.Create(late)
	w.warned(late, "VPC blue does not list namespace attacker")
	w.port(w.pod("member", "other", "logical_switch", "blue-net"))
	held := newPod("attacker", "vpc")
	w.allocated(held)
	w.port(held)
}

// A subnet in which VPCs have addresses is only for namespaces that it lists. Pods that have addresses there already keep them.
func TestExternalSubnetsAreForListedNamespaces(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"member", "attacker", "other"} {
		w.namespace(name, nil)
	}
	w.workingVlan()
	w.subnet("ovn-default", "10.16.0.0/24")
	outside := w.subnet("outside", "10.30.0.0/24", serving("member"), func(s *kubeovnv1.SubnetSpec) { s.Vlan = "v" })
	process := w.start()
	w.pod("attacker", "early", "logical_switch", "outside")

	vpc := w.vpc("blue", kubeovnv1.VpcSpec{ExtraExternalSubnets: []string{"outside", "ovn-default"}}) // ovn-default cannot be external: it has no Vlan
	w.Eventually(func() string {
		if vpcs, err := process.Networks.VpcsWithExternal(w.Context(), "outside"); len(vpcs) == 0 || err != nil {
			return fmt.Sprintf("the VPC is not in the cache (%v)", err)
		}
		return ""
	})
	vpc.Status.ExtraExternalSubnets = []string{"outside"}
	w.Must(w.Client.Status().Update(w.Context(), vpc))
	w.pod("attacker", "default", "logical_switch", "ovn-default")
	w.pod("member", "own")
	first, second := newPod("attacker", "first", "logical_switch", "outside"), newPod("other", "second", "logical_switch", "outside")
	for _, p := range []*corev1.Pod{first, second} {
		w.Create(p)
		w.warned(p, "subnet outside is an external subnet of a VPC and does not list namespace "+p.Namespace+": add it to namespaces or allowedNamespaces of the subnet")
	}

	w.Change(outside, func() { outside.Spec.AllowedNamespaces = []kubeovnv1.AllowedNamespace{"attacker"} })
	w.InForce(outside, process)
	w.allocated(first)

	// The subnet is external until the router has no port in it.
	w.Change(vpc, func() { vpc.Spec.ExtraExternalSubnets = nil })
	w.Rests("pod")
	if w.Get(second); kubeovnv1.IsPublished(second) {
		t.Errorf("the pod has %s while the router has a port in the subnet", address(second))
	}
	process = w.Restart(process, stepsAt(ipobject.Pace{}))
	for _, name := range []string{"early", "first"} {
		p := newPod("attacker", name)
		w.Get(p)
		w.held(process, name+".attacker", address(p))
	}
	w.Rests("pod")
	vpc.Status.ExtraExternalSubnets = nil
	w.Must(w.Client.Status().Update(w.Context(), vpc))
	w.allocated(second)
}

// With membership Open a pod may name any VPC, subnet and pool, as with Kube-OVN.
func TestOpenMembership(t *testing.T) {
	w := newWorld(t)
	w.namespace("anyone", nil)
	w.subnet("ovn-default", "10.16.0.0/24")
	w.vpc("blue", kubeovnv1.VpcSpec{})
	w.subnet("blue-net", "10.17.0.0/24", func(s *kubeovnv1.SubnetSpec) { s.Vpc, s.Private = "blue", true })
	w.Create(&kubeovnv1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "bound"}, Spec: kubeovnv1.IPPoolSpec{
		Subnet: "ovn-default", Namespaces: []string{"member"}, IPs: []string{"10.16.0.100"},
	}})
	w.Start(stepsWith(ipobject.Pace{}, func(r *pod.Reconciler) { r.Grants = grants.NewRules(r.Client, r.Namespaces, r.Networks, true) }))
	w.pod("anyone", "vpc", "logical_switch", "blue-net")
	if p := w.pod("anyone", "pool", "ip_pool", "bound"); address(p) != "10.16.0.100" {
		t.Errorf("the pod has %s", address(p))
	}
}

// The subnet, or else the cluster's default, decides whether a port drops packets from addresses other than its own. A pod may request
// this, but cannot opt out.
func TestPortSecurityIsEnforced(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24", func(s *kubeovnv1.SubnetSpec) { s.Vips = []string{"10.16.0.100"} })
	w.subnet("lenient", "10.17.0.0/24", func(s *kubeovnv1.SubnetSpec) { s.PortSecurity = kubeovnv1.PortSecurityRequested })
	strict := w.subnet("strict", "10.18.0.0/24", func(s *kubeovnv1.SubnetSpec) { s.PortSecurity = kubeovnv1.PortSecurityEnforced })
	var process *controllertest.Process
	for _, byDefault := range []bool{false, true} {
		process = w.Restart(process, stepsWith(ipobject.Pace{}, func(r *pod.Reconciler) { r.SecurePorts = byDefault }))
		suffix := map[bool]string{false: "-off", true: "-on"}[byDefault]
		for subnet, secured := range map[string]bool{"ovn-default": byDefault, "lenient": false, "strict": true} {
			p := w.pod("default", subnet+suffix, "logical_switch", subnet, "port_security", "false", "layer2_forward", "true", "port_vips", "10.16.0.100")
			port := w.port(p)
			want := []string(nil)
			if secured {
				want = []string{p.Annotations[kubeovnv1.AnnotationMACAddress.Key()] + " " + address(p)}
				if subnet == "ovn-default" {
					want[0] += " 10.16.0.100"
				}
				w.warnedOf(p, "AnnotationNotSupported", "set portSecurity of subnet "+subnet+" to Requested")
			}
			if got := port.Strings("port_security"); strings.Join(got, ";") != strings.Join(want, ";") {
				t.Errorf("%s%s: port_security %v, not %v", subnet, suffix, got, want)
			}
			if unknown := len(port.Strings("addresses")) > 1; unknown == secured {
				t.Errorf("%s%s: the port gets packets for unknown addresses: %t", subnet, suffix, unknown)
			}
		}
	}
	p := newPod("default", "strict-on")
	w.Get(p)
	w.Change(strict, func() { strict.Spec.PortSecurity = kubeovnv1.PortSecurityRequested })
	w.InForce(strict, process)
	w.Eventually(func() string {
		if got := w.portNow(p).Strings("port_security"); len(got) != 0 {
			return "the port passes only " + got[0]
		}
		return ""
	})
}

// Addresses retained for a StatefulSet are subject to the lists of namespaces: a replacement pod is refused like a new pod. Running pods
// keep theirs.
func TestAKeptAddressNeedsMembership(t *testing.T) {
	for name, test := range map[string]struct {
		annotations []string
		change      func(vpc *kubeovnv1.Vpc, subnet *kubeovnv1.Subnet, pool *kubeovnv1.IPPool)
		why         string
	}{
		"vpc": {
			annotations: []string{"logical_switch", "blue-net"}, why: "VPC blue does not list namespace default",
			change: func(vpc *kubeovnv1.Vpc, _ *kubeovnv1.Subnet, _ *kubeovnv1.IPPool) { vpc.Spec.AllowedNamespaces = nil },
		},
		"subnet": {
			annotations: []string{"logical_switch", "blue-net"}, why: "subnet blue-net is private and does not list namespace default",
			change: func(_ *kubeovnv1.Vpc, subnet *kubeovnv1.Subnet, _ *kubeovnv1.IPPool) {
				subnet.Spec.AllowedNamespaces = nil
			},
		},
		"pool": {
			annotations: []string{"ip_pool", "bound"}, why: "IPPool bound does not list namespace default",
			change: func(_ *kubeovnv1.Vpc, _ *kubeovnv1.Subnet, pool *kubeovnv1.IPPool) { pool.Spec.AllowedNamespaces = nil },
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.subnet("ovn-default", "10.16.0.0/24")
			listed := []kubeovnv1.AllowedNamespace{"default"}
			vpc := w.vpc("blue", kubeovnv1.VpcSpec{AllowedNamespaces: listed})
			subnet := w.subnet("blue-net", "10.17.0.0/24", func(s *kubeovnv1.SubnetSpec) { s.Vpc, s.Private, s.AllowedNamespaces = "blue", true, listed })
			pool := &kubeovnv1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "bound"}, Spec: kubeovnv1.IPPoolSpec{
				Subnet: "blue-net", Namespaces: []string{"other"}, AllowedNamespaces: listed, IPs: []string{"10.17.0.100..10.17.0.110"},
			}}
			w.Create(pool)
			process := w.start()
			set := w.statefulSet("db", 0, 3)
			members := make([]*corev1.Pod, 3)
			for i := range members {
				members[i] = replica(set, i, "n1", test.annotations...)
				w.Create(members[i])
				w.allocated(members[i])
			}
			w.Delete(members[0])
			w.away(process, members[0])

			test.change(vpc, subnet, pool)
			w.Must(w.Client.Update(w.Context(), vpc))
			w.Must(w.Client.Update(w.Context(), subnet))
			w.Must(w.Client.Update(w.Context(), pool))
			w.InForce(subnet, process)
			w.Restart(process, stepsAt(ipobject.Pace{}))
			w.port(members[1]) // keeps running
			w.port(members[2])
			w.Delete(members[2]) // without waiting, so that the controller may see the new pod first
			for _, i := range []int{0, 2} {
				replaced := replica(set, i, "n1", test.annotations...)
				w.Create(replaced)
				w.warned(replaced, test.why)
				if w.Get(replaced); kubeovnv1.IsPublished(replaced) {
					t.Errorf("pod %s has address %s", replaced.Name, address(replaced))
				}
				w.Eventually(func() string {
					if port := w.portNow(replaced); port != nil {
						return fmt.Sprintf("port of %s is %v", replaced.Name, port)
					}
					return ""
				})
			}
			w.port(members[1])
		})
	}
}
