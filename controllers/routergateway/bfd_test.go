// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package routergateway_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
)

// report sets the status of a session as ovn-northd does.
func (w *world) report(peer, status string) {
	w.Helper()
	w.Database.Transact(nbtest.Op{"op": "update", "table": "BFD", "where": nbtest.Where("dst_ip", "==", peer), "row": map[string]any{"status": status}})
}

// sessions waits until the BFD sessions are these, in the form `port peer minTransmit/minReceive/multiplier`.
func (w *world) sessions(want ...string) {
	w.Helper()
	w.Rows("BFD", func(row nbtest.Row) string {
		return fmt.Sprintf("%v %v %v/%v/%v", row["logical_port"], row["dst_ip"], row["min_tx"], row["min_rx"], row["detect_mult"])
	}, want...)
}

// depending waits until the routes with a BFD session are these, in the form `prefix by next hop`. Routes that only keep sessions running are left out.
func (w *world) depending(want ...string) {
	w.Helper()
	w.Rows("Logical_Router_Static_Route", func(row nbtest.Row) string {
		if len(row.Strings("bfd")) == 0 || row["route_table"] == "_bfd" {
			return ""
		}
		session := w.Database.Rows("BFD")[row.Strings("bfd")[0]]
		if session["dst_ip"] != row["nexthop"] {
			return fmt.Sprint(row["ip_prefix"], " depends on ", session["dst_ip"], ", and not on its next hop")
		}
		return fmt.Sprint(row["ip_prefix"], " by ", row["nexthop"])
	}, want...)
}

// noBFD waits until a VPC has no status of BFD sessions.
func (w *world) noBFD(v *kubeovnv1.Vpc) {
	w.Helper()
	w.Eventually(func() string {
		w.Get(v)
		if v.Status.EnableBfd || len(v.Status.BFDSessions) > 0 || apimeta.FindStatusCondition(v.Status.Conditions, kubeovnv1.ConditionBFDUp) != nil {
			return fmt.Sprintf("the status is %+v", v.Status)
		}
		if _, there := w.Metric("kiln_external_bfd_sessions", "vpc", v.Name); there {
			return "the metric has a series"
		}
		return ""
	})
}

// The default route depends on the session with the physical router, whose state the Vpc reports.
func TestBFDWithThePhysicalRouter(t *testing.T) {
	w := newWorld(t)
	w.provider("n1")
	w.external("external", 30, "192.0.2.0/24,2001:db8:2::/64", "192.0.2.254,2001:db8:2::fe")
	blue := w.vpc("blue", func(s *kubeovnv1.VpcSpec) { s.EnableExternal, s.EnableBfd = true, true })
	w.sessions("blue-external 192.0.2.254 300/300/3", "blue-external 2001:db8:2::fe 300/300/3")
	w.depending("0.0.0.0/0 by 192.0.2.254", "::/0 by 2001:db8:2::fe")
	w.says(blue, metav1.ConditionTrue) // the router has its port
	w.Says(blue, kubeovnv1.ConditionFieldsSupported, metav1.ConditionTrue)
	w.Says(blue, kubeovnv1.ConditionBFDUp, metav1.ConditionFalse, "SessionsDown", "no BFD session with 192.0.2.254 in subnet external, 2001:db8:2::fe in subnet external",
		"the default route of IPv4, the default route of IPv6")
	w.Event(blue, eventsv1.Event{Type: "Warning", Reason: "SessionsDown"})
	w.Measures(2, "kiln_external_bfd_sessions", "vpc", "blue")
	w.Measures(0, "kiln_external_bfd_sessions_up", "vpc", "blue")

	w.report("192.0.2.254", "up")
	w.Says(blue, kubeovnv1.ConditionBFDUp, metav1.ConditionFalse, "no BFD session with 2001:db8:2::fe in subnet external; not used meanwhile: the default route of IPv6;")
	w.report("2001:db8:2::fe", "up")
	w.Says(blue, kubeovnv1.ConditionBFDUp, metav1.ConditionTrue, "SessionsUp", "192.0.2.254 in subnet external")
	w.Measures(2, "kiln_external_bfd_sessions_up", "vpc", "blue")
	want := []kubeovnv1.BFDSession{{Subnet: "external", Peer: "192.0.2.254", Status: "up"}, {Subnet: "external", Peer: "2001:db8:2::fe", Status: "up"}}
	if w.Get(blue); !blue.Status.EnableBfd || !slices.Equal(blue.Status.BFDSessions, want) {
		t.Errorf("the status is %+v", blue.Status)
	}
	w.report("192.0.2.254", "down")
	w.Says(blue, kubeovnv1.ConditionBFDUp, metav1.ConditionFalse, "no BFD session with 192.0.2.254 in subnet external; not used meanwhile: the default route of IPv4;")
	w.depending("0.0.0.0/0 by 192.0.2.254", "::/0 by 2001:db8:2::fe") // Kiln changes no row: there is no other way
	w.run()
	w.report("192.0.2.254", "up")
	w.Says(blue, kubeovnv1.ConditionBFDUp, metav1.ConditionTrue)
	w.RestoresRows("External//blue")

	// The OVNCluster changes the times of sessions that run.
	ms := func(n int) *metav1.Duration { return &metav1.Duration{Duration: time.Duration(n) * time.Millisecond} }
	cluster := &v1alpha1.OVNCluster{}
	cluster.Spec.Network.ExternalGateways.BFD = v1alpha1.BFD{MinTransmit: ms(50), MinReceive: ms(60), Multiplier: 5}
	w.settings.Set(cluster)
	w.sessions("blue-external 192.0.2.254 50/60/5", "blue-external 2001:db8:2::fe 50/60/5")
	w.settings.Set(&v1alpha1.OVNCluster{})
	w.sessions("blue-external 192.0.2.254 300/300/3", "blue-external 2001:db8:2::fe 300/300/3")

	w.Get(blue)
	w.Change(blue, func() { blue.Spec.EnableBfd = false })
	w.sessions()
	w.depending()
	w.routes("0.0.0.0/0 by 192.0.2.254", "::/0 by 2001:db8:2::fe")
	w.noBFD(blue)
	w.Change(blue, func() { blue.Spec.EnableBfd = true })
	w.Says(blue, kubeovnv1.ConditionBFDUp, metav1.ConditionFalse)
	w.Change(blue, func() { blue.Spec.EnableExternal = false })
	w.sessions()
	w.noBFD(blue)
	w.Says(blue, kubeovnv1.ConditionFieldsSupported, metav1.ConditionFalse, "enableBfd without an external subnet")
}

// A static route with bfdId, of any text, depends on a session with its own next hop. The session exists while the port does.
func TestBFDOfStaticRoutes(t *testing.T) {
	w := newWorld(t)
	w.provider("n1")
	w.external("external", 30, "192.0.2.0/24", "192.0.2.254")
	route := func(cidr, hop, session string) *kubeovnv1.StaticRoute {
		return &kubeovnv1.StaticRoute{CIDR: cidr, NextHopIP: hop, BFDID: session}
	}
	foreign := w.vpc("foreign", func(s *kubeovnv1.VpcSpec) { s.EnableExternal, s.EnableBfd = true, true })
	w.sessions("foreign-external 192.0.2.254 300/300/3")
	var theirs string // a tool that copies manifests may take a UUID of another VPC
	for uuid := range w.Database.Rows("BFD") {
		theirs = uuid
	}
	w.Create(&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "inside"}, Spec: kubeovnv1.SubnetSpec{Vpc: "blue", CIDRBlock: "10.0.0.0/24"}})
	blue := w.vpc("blue", func(s *kubeovnv1.VpcSpec) {
		s.EnableExternal = true
		s.StaticRoutes = []*kubeovnv1.StaticRoute{
			route("0.0.0.0/0", "192.0.2.252", theirs), route("0.0.0.0/0", "192.0.2.253", "b"), route("203.0.113.0/24", "192.0.2.252", "c"),
			route("203.0.114.0/24", "192.0.2.254", ""), route("203.0.115.0/24", "10.0.0.9", "d"),
		}
	})
	w.sessions("blue-external 192.0.2.252 300/300/3", "blue-external 192.0.2.253 300/300/3", "foreign-external 192.0.2.254 300/300/3")
	w.depending("0.0.0.0/0 by 192.0.2.252", "0.0.0.0/0 by 192.0.2.253", "0.0.0.0/0 by 192.0.2.254", "203.0.113.0/24 by 192.0.2.252")
	w.Says(blue, kubeovnv1.ConditionFieldsSupported, metav1.ConditionFalse, "bfdId of staticRoutes[4] (next hop 10.0.0.9 is in no external subnet")
	w.report("192.0.2.253", "up")
	w.Says(blue, kubeovnv1.ConditionBFDUp, metav1.ConditionFalse, "no BFD session with 192.0.2.252 in subnet external; not used meanwhile: static routes with bfdId")
	w.report("192.0.2.252", "up")
	w.Says(blue, kubeovnv1.ConditionBFDUp, metav1.ConditionTrue)
	if w.Get(blue); blue.Status.EnableBfd {
		t.Error("enableBfd is true without enableBfd in the spec")
	}
	w.Says(foreign, kubeovnv1.ConditionBFDUp, metav1.ConditionFalse)

	w.Get(blue)
	w.Change(blue, func() { blue.Spec.EnableExternal = false })
	w.sessions("foreign-external 192.0.2.254 300/300/3")
	w.depending("0.0.0.0/0 by 192.0.2.254")
	w.Get(blue)
	w.Change(blue, func() { blue.Spec.EnableExternal = true })
	w.depending("0.0.0.0/0 by 192.0.2.252", "0.0.0.0/0 by 192.0.2.253", "0.0.0.0/0 by 192.0.2.254", "203.0.113.0/24 by 192.0.2.252")
	w.Get(blue)
	w.Change(blue, func() { blue.Spec.StaticRoutes = blue.Spec.StaticRoutes[:1] })
	w.sessions("blue-external 192.0.2.252 300/300/3", "foreign-external 192.0.2.254 300/300/3")
	w.Says(blue, kubeovnv1.ConditionFieldsSupported, metav1.ConditionTrue)
}

// While a change of the ports fails, here because of a row of another system, the applied sessions run: metrics and status report them.
func TestSessionsAreReportedWhileAChangeFails(t *testing.T) {
	w := newWorld(t)
	w.provider("n1")
	w.external("external", 30, "192.0.2.0/24", "192.0.2.254")
	blue := w.vpc("blue", func(s *kubeovnv1.VpcSpec) { s.EnableExternal, s.EnableBfd = true, true })
	w.sessions("blue-external 192.0.2.254 300/300/3")
	w.report("192.0.2.254", "up")
	w.Says(blue, kubeovnv1.ConditionBFDUp, metav1.ConditionTrue)
	w.Database.Transact(nbtest.Op{"op": "insert", "table": "BFD", "row": map[string]any{"logical_port": "blue-external", "dst_ip": "192.0.2.253"}})
	w.Get(blue)
	w.Change(blue, func() {
		blue.Spec.StaticRoutes = []*kubeovnv1.StaticRoute{{CIDR: "203.0.113.0/24", NextHopIP: "192.0.2.253", BFDID: "x"}}
	})
	w.says(blue, metav1.ConditionFalse)
	w.Measures(1, "kiln_external_bfd_sessions_up", "vpc", "blue")
	w.report("192.0.2.254", "down")
	w.Says(blue, kubeovnv1.ConditionBFDUp, metav1.ConditionFalse, "no BFD session with 192.0.2.254 in subnet external;")
	w.Measures(1, "kiln_external_bfd_sessions", "vpc", "blue")
	w.Measures(0, "kiln_external_bfd_sessions_up", "vpc", "blue")
	want := []kubeovnv1.BFDSession{{Subnet: "external", Peer: "192.0.2.254", Status: "down"}}
	if w.Get(blue); !blue.Status.EnableBfd || !slices.Equal(blue.Status.BFDSessions, want) {
		t.Errorf("the status is %+v", blue.Status)
	}
	w.Database.Transact(nbtest.Op{"op": "delete", "table": "BFD", "where": nbtest.Where("dst_ip", "==", "192.0.2.253")})
	w.says(blue, metav1.ConditionTrue)
	w.Measures(2, "kiln_external_bfd_sessions", "vpc", "blue")
}

// With several external subnets, and in the default VPC, sessions run and no default route depends on them.
func TestBFDWithSeveralExternalSubnets(t *testing.T) {
	w := newWorld(t)
	w.provider("n1")
	w.external("external", 30, "192.0.2.0/24", "192.0.2.254")
	w.external("ext2", 31, "192.0.3.0/24,2001:db8:3::/64", "192.0.3.254,2001:db8:3::fe")
	red := w.vpc("red", func(s *kubeovnv1.VpcSpec) { s.ExtraExternalSubnets, s.EnableBfd = []string{"external", "ext2"}, true })
	w.sessions("red-ext2 192.0.3.254 300/300/3", "red-ext2 2001:db8:3::fe 300/300/3", "red-external 192.0.2.254 300/300/3")
	w.depending("::/0 by 2001:db8:3::fe") // the only subnet of its family
	w.report("2001:db8:3::fe", "up")
	w.report("192.0.3.254", "up")
	w.Says(red, kubeovnv1.ConditionBFDUp, metav1.ConditionFalse, "no BFD session with 192.0.2.254 in subnet external; check the path") // no route depends on it
	w.Get(red)
	w.Change(red, func() { red.Spec.ExtraExternalSubnets = []string{"external"} })
	w.depending("0.0.0.0/0 by 192.0.2.254")
	vpc := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "ovn-cluster"}}
	w.Get(vpc)
	w.Change(vpc, func() { vpc.Spec.EnableExternal, vpc.Spec.EnableBfd = true, true })
	w.sessions("ovn-cluster-external 192.0.2.254 300/300/3", "red-external 192.0.2.254 300/300/3")
	w.Says(vpc, kubeovnv1.ConditionBFDUp, metav1.ConditionFalse, "192.0.2.254 in subnet external")
}
