// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
)

func TestAPodGetsItsNetworkInOneTransactionAndOnePatch(t *testing.T) {
	for protocol, cidr := range map[string]string{
		"IPv4": "10.16.0.0/24",
		"IPv6": "fd00:10:16::/112",
		"Dual": "10.16.0.0/24,fd00:10:16::/112",
	} {
		t.Run(protocol, func(t *testing.T) {
			w := newWorld(t)
			subnet := w.subnet("ovn-default", cidr)
			process := w.start()
			p := w.pod("default", "web")

			network := w.allocated(p)
			cidrs := ipfamily.Join(network.CIDRs)
			if len(network.Addresses) != len(network.CIDRs) || cidrs != cidr || ipfamily.Join(network.Gateways) != subnet.Spec.Gateway {
				t.Errorf("network is %+v", network)
			}
			if network.LogicalSwitch != "ovn-default" || network.LogicalRouter != "ovn-cluster" || network.NICType != "veth-pair" {
				t.Errorf("network is %+v", network)
			}
			port := w.port(p)
			want := network.MAC.String() + " " + strings.ReplaceAll(ipfamily.Join(network.Addresses), ",", " ")
			if got := port.Strings("addresses"); len(got) != 1 || got[0] != want {
				t.Errorf("port has %v, want %s", got, want)
			}
			if len(port.Strings("port_security")) != 0 {
				t.Errorf("port security is on")
			}
			var left []string // by the pod's own node
			for _, set := range w.Database.Rows("Address_Set") {
				if strings.Contains(fmt.Sprint(set["external_ids"]), "n1") {
					left = append(left, set.Strings("addresses")...)
				} else if others := set.Strings("addresses"); len(others) > 0 {
					t.Errorf("%v is in a set of another node", others)
				}
			}
			slices.Sort(left)
			if got, want := strings.Join(left, ","), ipfamily.Join(network.Addresses); got != want {
				t.Errorf("the sets of the node hold %s, want %s", got, want)
			}
			ip := w.ipObject(p)
			if ip.Spec.NodeName != "n1" || ip.Spec.Subnet != "ovn-default" || ip.Spec.MACAddress != network.MAC.String() ||
				ip.Labels["ovn.kubernetes.io/subnet"] != "ovn-default" || ip.Labels["ovn.kubernetes.io/node-name"] != "n1" {
				t.Errorf("IP object has %+v and labels %v", ip.Spec, ip.Labels)
			}
			if n := process.Writes(http.MethodPatch, "/pods/web"); n != 1 {
				t.Errorf("%d patches", n)
			}
			if n := process.Transactions(); n != 1 {
				t.Errorf("%d transactions", n)
			}
		})
	}
}

func TestAPodWithARefusedPortGetsAnEvent(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24")
	w.namespace("b", nil)
	w.Repeats()
	w.start()
	foreign := nbtest.Where("name", "==", "foreign")
	w.Database.Transact(
		nbtest.Op{"op": "insert", "table": "Logical_Switch_Port", "uuid-name": "port", "row": map[string]any{"name": "a.b"}},
		nbtest.Op{"op": "insert", "table": "Logical_Switch", "row": map[string]any{"name": "foreign", "ports": []any{"named-uuid", "port"}}},
	)
	p := newPod("b", "a")
	w.Create(p)
	w.warned(p, "the northbound database refuses the port of this pod")
	w.pod("b", "other")
	w.Database.Transact(nbtest.Op{"op": "delete", "table": "Logical_Switch", "where": foreign})
	w.allocated(p)
}

func TestAPodWaitsForItsNode(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24")
	process := w.start()
	p := newPod("default", "early")
	p.Spec.NodeName = "n3"
	w.Create(p)
	w.pod("default", "other")
	if w.portNow(p) != nil {
		t.Error("the pod has a port without its node's groups")
	}
	w.Nodes = append(w.Nodes, "n3")
	w.subnetIn(process, "another", "10.17.0.0/24")
	w.allocated(p)
}

func TestAPodKeepsItsAddressUntilItIsDeleted(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24")
	process := w.start()

	terminating := newPod("default", "terminating")
	terminating.Finalizers = []string{"test.kiln.io/hold"}
	w.Create(terminating)
	w.allocated(terminating)
	w.Delete(terminating)
	finished := w.pod("default", "finished")
	finished.Status.Phase = corev1.PodSucceeded
	w.Must(w.Client.Status().Update(w.Context(), finished))
	w.gone(process, finished)
	if w.portNow(terminating) == nil {
		t.Error("a terminating pod lost its port")
	}
	w.Get(terminating)
	w.Change(terminating, func() { terminating.Finalizers = nil })
	w.gone(process, terminating)
}

func TestDamageIsHealedWithTheSameAddress(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24")
	process := w.start()
	p := w.pod("default", "web")
	was := address(p)
	ip := w.ipObject(p)

	w.Change(p, func() {
		p.Annotations["ovn.kubernetes.io/ip_address"] = "10.16.0.99"
		delete(p.Annotations, "ovn.kubernetes.io/allocated")
		delete(p.Annotations, "ovn.kubernetes.io/pod_uid")
	})
	w.allocated(p)
	if address(p) != was {
		t.Errorf("edited annotations moved the pod from %s to %s", was, address(p))
	}
	w.Database.Transact(
		nbtest.Op{"op": "mutate", "table": "Logical_Switch", "where": []any{}, "mutations": []any{
			[]any{"ports", "delete", []any{"set", []any{nbtest.UUID(w.portUUID(p))}}},
		}},
	)
	w.port(p)
	w.Delete(ip)
	w.ipObject(p)
	w.agree(process)
}

func (w world) portUUID(p *corev1.Pod) string {
	w.Helper()
	for uuid, row := range w.Database.Rows("Logical_Switch_Port") {
		if row["name"] == p.Name+"."+p.Namespace {
			return uuid
		}
	}
	w.Fatalf("pod %s has no port", p.Name)
	return ""
}

func TestAChangedSubnetReachesItsPods(t *testing.T) {
	w := newWorld(t)
	s := w.subnet("ovn-default", "10.16.0.0/24")
	process := w.start()
	p := w.pod("default", "web")
	w.Change(s, func() { s.Spec.MTU = 1280 })
	w.InForce(s, process)
	w.Eventually(func() string {
		w.Get(p)
		if p.Annotations["ovn.kubernetes.io/mtu"] != "1280" {
			return fmt.Sprintf("annotations are %v", p.Annotations)
		}
		return ""
	})
	w.Change(s, func() { s.Spec.MTU = 0 })
	w.InForce(s, process)
	w.Eventually(func() string {
		w.Get(p)
		if _, stays := p.Annotations["ovn.kubernetes.io/mtu"]; stays {
			return "the MTU stays"
		}
		return ""
	})
}
