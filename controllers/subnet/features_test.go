// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet_test

import (
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/subnet"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/validation"
)

// ready creates a subnet and waits until it is ready.
func (n *network) ready(name string, spec kubeovnv1.SubnetSpec) *kubeovnv1.Subnet {
	n.Helper()
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	n.Create(s)
	n.condition(name, kubeovnv1.ConditionReady, metav1.ConditionTrue)
	n.Get(s)
	return s
}

// change changes a subnet's spec and waits until the change is applied.
func (n *network) change(s *kubeovnv1.Subnet, f func()) {
	n.Helper()
	n.Get(s)
	n.Change(s, f)
	n.condition(s.Name, kubeovnv1.ConditionReady, metav1.ConditionTrue)
	n.Get(s)
}

func TestAPrivateSubnetHasNoOpenWindow(t *testing.T) {
	n := start(t)
	n.condition("join", kubeovnv1.ConditionReady, metav1.ConditionTrue)
	s := n.ready("shop", kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/24,fd00:20::/64", Private: true})
	closed := []string{ // all traffic but within the subnet and from nodes, by their own addresses and their addresses on join
		"ip", "ip4.src == $set", "ip4.src == 10.20.0.0/24 && ip4.dst == 10.20.0.0/24", "ip4.src == 100.64.0.0/16",
		"ip6.src == $set", "ip6.src == fd00:100:64::/112", "ip6.src == fd00:20::/64 && ip6.dst == fd00:20::/64",
	}
	n.rules(closed...)

	n.idle() // the default subnets may not be committed yet
	before := n.process.Transactions()
	n.change(s, func() {
		s.Spec.AllowSubnets = []string{"10.21.0.0/24"}
		s.Spec.ACLs = []kubeovnv1.ACL{{Direction: "to-lport", Priority: 2000, Match: "ip4 && tcp.dst == 22", Action: "drop"}}
	})
	if sent := n.process.Transactions() - before; sent != 1 {
		t.Errorf("a change of the rules took %d transactions", sent)
	}
	n.rules("ip", "ip4 && tcp.dst == 22", "ip4.src == $set", "ip4.src == 10.20.0.0/24 && ip4.dst == 10.20.0.0/24", "ip4.src == 10.20.0.0/24 && ip4.dst == 10.21.0.0/24",
		"ip4.src == 10.21.0.0/24 && ip4.dst == 10.20.0.0/24", "ip4.src == 100.64.0.0/16", "ip6.src == $set", "ip6.src == fd00:100:64::/112", "ip6.src == fd00:20::/64 && ip6.dst == fd00:20::/64")

	n.run()
	n.condition("shop", kubeovnv1.ConditionReady, metav1.ConditionTrue)
	n.change(s, func() { s.Spec.AllowSubnets, s.Spec.ACLs = nil, nil })
	n.rules(closed...)

	n.Database.Transact(nbtest.Op{"op": "update", "table": "Logical_Switch", "where": nbtest.Where("name", "==", "shop"), "row": map[string]any{"acls": []any{"set", []any{}}}})
	n.rules(closed...)

	n.change(s, func() { s.Spec.Private = false })
	n.rules()
	for _, table := range []string{"Meter", "Meter_Band"} {
		n.Rows(table, func(row nbtest.Row) string {
			owner := row["external_ids"].(map[string]string)["kiln-owner"]
			if strings.HasPrefix(owner, "Protection/") {
				return "" // limits of the VPC
			}
			return owner
		})
	}
}

func TestAPrivateSubnetFollowsTheNodesSubnet(t *testing.T) {
	n := start(t)
	n.condition("join", kubeovnv1.ConditionReady, metav1.ConditionTrue)
	n.ready("shop", kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/24", Private: true})
	join := n.subnet("join")
	n.change(join, func() { join.Spec.CIDRBlock, join.Spec.Gateway, join.Spec.ExcludeIPs = "100.65.0.0/16", "", nil })
	n.rules("ip", "ip4.src == $set", "ip4.src == 10.20.0.0/24 && ip4.dst == 10.20.0.0/24", "ip4.src == 100.65.0.0/16")
}

func TestAnInvalidFeatureChangesNothing(t *testing.T) {
	n := start(t)
	s := n.ready("shop", kubeovnv1.SubnetSpec{
		CIDRBlock: "10.20.0.0/24,fd00:20::/64", EnableDHCP: true, EnableIPv6RA: true,
		ACLs: []kubeovnv1.ACL{{Direction: "to-lport", Priority: 2000, Match: "tcp.dst == 22", Action: "drop"}},
	})
	right := s.Spec.DeepCopy()
	n.idle() // the default subnets may not be committed yet
	for _, tt := range []struct {
		reason, message string
		change          func(*kubeovnv1.SubnetSpec)
	}{
		{validation.ReasonACLInvalid, "acls[0]: match", func(spec *kubeovnv1.SubnetSpec) { spec.ACLs[0].Match = "tcp.port == 22" }},
		{validation.ReasonDHCPInvalid, "dhcpV4Options", func(spec *kubeovnv1.SubnetSpec) { spec.DHCPV4Options = "lease=5" }},
		{validation.ReasonRAInvalid, "ipv6RAConfigs", func(spec *kubeovnv1.SubnetSpec) { spec.IPv6RAConfigs = "address_mode=auto" }},
		{validation.ReasonFieldInvalid, "mtu 60", func(spec *kubeovnv1.SubnetSpec) { spec.MTU, spec.CIDRBlock, spec.Gateway = 60, "10.20.0.0/24", "" }},
	} {
		before := n.process.Transactions()
		n.Get(s)
		n.Change(s, func() { tt.change(&s.Spec) })
		c := n.condition("shop", kubeovnv1.ConditionValidated, metav1.ConditionFalse)
		if c.Reason != tt.reason || !strings.Contains(c.Message, tt.message) {
			t.Errorf("condition says %s: %s", c.Reason, c.Message)
		}
		if sent := n.process.Transactions() - before; sent != 0 {
			t.Errorf("%s: %d transactions were sent", tt.reason, sent)
		}
		n.rules("tcp.dst == 22")
		n.rows("DHCP_Options", "cidr", "10.20.0.0/24", "fd00:20::/64")
		if got := n.subnet("shop").Status; got.DHCPV4OptionsUUID == "" {
			t.Error("the status lost the effective features")
		}
		n.change(s, func() { s.Spec = *right.DeepCopy() })
	}
}

func TestDHCPAndAdvertisementsComeChangeAndGo(t *testing.T) {
	n := start(t)
	s := n.ready("shop", kubeovnv1.SubnetSpec{
		CIDRBlock: "10.20.0.0/24,fd00:20::/64", EnableDHCP: true, DHCPV4Options: "lease_time=60", EnableIPv6RA: true, RouteTable: "blue",
	})
	uuids := map[string]string{}
	for uuid, row := range n.Database.Rows("DHCP_Options") {
		uuids[row["cidr"].(string)] = uuid
	}
	if s.Status.DHCPV4OptionsUUID != uuids["10.20.0.0/24"] || s.Status.DHCPV6OptionsUUID != uuids["fd00:20::/64"] || len(uuids) != 2 {
		t.Errorf("status has %+v, the rows are %v", s.Status, uuids)
	}
	n.option("DHCP_Options", "cidr", "10.20.0.0/24", "options", "lease_time", "60")
	n.option("DHCP_Options", "cidr", "10.20.0.0/24", "options", "router", "10.20.0.1")
	n.option("Logical_Router_Port", "name", "ovn-cluster-shop", "ipv6_ra_configs", "address_mode", "dhcpv6_stateful")
	n.option("Logical_Router_Port", "name", "ovn-cluster-shop", "options", "route_table", "blue")

	n.change(s, func() {
		s.Spec.Gateway, s.Spec.MTU, s.Spec.IPv6RAConfigs, s.Spec.RouteTable = "10.20.0.254,fd00:20::1", 1400, "address_mode=slaac", ""
	})
	n.option("DHCP_Options", "cidr", "10.20.0.0/24", "options", "router", "10.20.0.254")
	n.option("DHCP_Options", "cidr", "10.20.0.0/24", "options", "mtu", "1400")
	n.option("Logical_Router_Port", "name", "ovn-cluster-shop", "ipv6_ra_configs", "address_mode", "slaac")
	n.option("Logical_Router_Port", "name", "ovn-cluster-shop", "options", "route_table", "")

	n.change(s, func() { s.Spec.CIDRBlock, s.Spec.Gateway, s.Spec.ExcludeIPs = "10.20.0.0/23", "10.20.0.1", nil })
	n.rows("DHCP_Options", "cidr", "10.20.0.0/23")
	if got := n.subnet("shop").Status; got.DHCPV6OptionsUUID != "" || got.DHCPV4OptionsUUID != uuids["10.20.0.0/24"] {
		t.Errorf("status has %+v", got)
	}
	n.change(s, func() { s.Spec.EnableDHCP, s.Spec.EnableIPv6RA = false, false })
	n.rows("DHCP_Options", "cidr")
	n.option("Logical_Router_Port", "name", "ovn-cluster-shop", "ipv6_ra_configs", "address_mode", "")
	if got := n.subnet("shop").Status.DHCPV4OptionsUUID; got != "" {
		t.Errorf("status names row %s", got)
	}
}

func TestServicesAreServedOrNot(t *testing.T) {
	n := start(t)
	s := n.ready("shop", kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/24"})
	groups := func() int {
		for _, row := range n.Database.Rows("Logical_Switch") {
			if row["name"] == "shop" {
				return len(row.Strings("load_balancer_group"))
			}
		}
		return -1
	}
	for _, serve := range []bool{false, true, false} {
		n.change(s, func() { s.Spec.EnableLb = &serve })
		if got := groups(); (got == 1) != serve {
			t.Errorf("enableLb %t: the switch has %d load balancer groups", serve, got)
		}
	}
}

// option waits until a key of a map in the row with this name (or other column) has a value. "" waits until the key is absent.
func (n *network) option(table, column, name, mapColumn, key, want string) {
	n.Helper()
	n.Eventually(func() string {
		for _, row := range n.Database.Rows(table) {
			if row[column] == name {
				options, _ := row[mapColumn].(map[string]string)
				if options[key] == want {
					return ""
				}
				return table + " " + name + ": " + mapColumn + ":" + key + " is " + options[key] + ", want " + want
			}
		}
		return "there is no " + table + " " + name
	})
}

// hold allocates an address of a subnet to a port.
func (n *network) hold(port, subnet, address string) {
	n.Helper()
	_, err := n.process.Allocator.Allocate(port, ipam.Request{Subnet: subnet, Addresses: []netip.Addr{netip.MustParseAddr(address)}})
	n.Must(err)
}

func TestACIDRGrowsInPlaceAndShrinksOnlyWhereNothingIs(t *testing.T) {
	n := startMeasured(t)
	s := n.ready("shop", kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/24,fd00:20::/64"})
	n.hold("web.default", "shop", "10.20.0.9")
	n.change(s, func() { s.Spec.CIDRBlock = "10.20.0.0/23,fd00:20::/48" })
	n.rows("Logical_Router_Port", "networks", "10.16.0.1/16 fd00:10:16::1/64", "10.20.0.1/23 fd00:20::1/48", "100.64.0.1/16 fd00:100:64::1/112")
	n.rows("Logical_Router_Policy", "match", "ip4.dst == 10.16.0.0/16", "ip4.dst == 10.20.0.0/23", "ip4.dst == 100.64.0.0/16",
		"ip6.dst == fd00:100:64::/112", "ip6.dst == fd00:10:16::/64", "ip6.dst == fd00:20::/48")
	n.hold("db.default", "shop", "10.20.1.7")
	n.idle()
	for _, refused := range []struct {
		message string
		change  func()
	}{
		{"cidrBlock 10.20.0.0/24,fd00:20::/48 leaves out addresses in use: 10.20.1.7 (db.default)", func() { s.Spec.CIDRBlock = "10.20.0.0/24,fd00:20::/48" }},
		{"10.20.0.9 (web.default), 10.20.1.7 (db.default)", func() { s.Spec.CIDRBlock, s.Spec.Gateway = "fd00:20::/48", "fd00:20::1" }},
		{"gateway is in use: 10.20.0.9 (web.default)", func() { s.Spec.Gateway = "10.20.0.9,fd00:20::1" }},
		{"vpc cannot change from ovn-cluster to tenant while addresses are in use: ", func() { s.Spec.Vpc = "tenant" }},
	} {
		right, before := s.Spec.DeepCopy(), n.process.Transactions()
		n.Get(s)
		n.Change(s, refused.change)
		if c := n.condition("shop", kubeovnv1.ConditionValidated, metav1.ConditionFalse); c.Reason != validation.ReasonAddressesInUse || !strings.Contains(c.Message, refused.message) {
			t.Errorf("condition says %s: %s, want %s", c.Reason, c.Message, refused.message)
		}
		if sent := n.process.Transactions() - before; sent != 0 {
			t.Errorf("%s: %d transactions were sent", refused.message, sent)
		}
		n.change(s, func() { s.Spec = *right })
	}

	n.Get(s)
	n.Change(s, func() { s.Spec.CIDRBlock = "10.20.0.0/24,fd00:20::/48" })
	n.condition("shop", kubeovnv1.ConditionReady, metav1.ConditionFalse)
	n.process.Allocator.Release("db.default") // remove the conflict
	n.condition("shop", kubeovnv1.ConditionReady, metav1.ConditionTrue)
	if got := n.subnet("shop").Status; got.V4UsingIPs != 1 || got.V4UsingIPRange != "10.20.0.9" || got.V4AvailableIPs != 252 ||
		got.V4AvailableIPRange != "10.20.0.2-10.20.0.8,10.20.0.10-10.20.0.254" {
		t.Errorf("status is %+v", got)
	}
}

func TestExcludedAddressesInUseStayInUse(t *testing.T) {
	n := startMeasured(t)
	s := n.ready("shop", kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/29"})
	n.hold("web.default", "shop", "10.20.0.3")
	usage := func(using, available float64, ranges string) {
		t.Helper()
		n.Eventually(func() string {
			if got := n.subnet("shop").Status; got.V4UsingIPs != using || got.V4AvailableIPs != available || got.V4AvailableIPRange != ranges {
				return fmt.Sprintf("status is %+v", got)
			}
			return ""
		})
	}
	usage(1, 4, "10.20.0.2,10.20.0.4-10.20.0.6")
	n.change(s, func() { s.Spec.ExcludeIPs = []string{"10.20.0.1..10.20.0.4"} })
	usage(1, 2, "10.20.0.5-10.20.0.6")
	n.change(s, func() { s.Spec.ExcludeIPs = []string{"10.20.0.6"} })
	usage(1, 3, "10.20.0.2,10.20.0.4-10.20.0.5")
	n.process.Allocator.Release("web.default")
	usage(0, 4, "10.20.0.2-10.20.0.5")
}

func TestAnEmptySubnetMovesToAnotherVPC(t *testing.T) {
	n := start(t)
	n.Create(&kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "tenant"}})
	s := n.ready("shop", kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/24", Private: true, EnableDHCP: true})
	n.change(s, func() { s.Spec.Vpc = "tenant" })
	n.rows("Logical_Router_Port", "name", "ovn-cluster-join", "ovn-cluster-ovn-default", "tenant-shop")
	n.rules("ip", "ip4.src == 10.20.0.0/24 && ip4.dst == 10.20.0.0/24")

	n.Get(s)
	n.Change(s, func() { s.Spec.Provider = "net.default.ovn" })
	n.condition("shop", kubeovnv1.ConditionReady, metav1.ConditionFalse)
	n.rows("Logical_Router_Port", "name", "ovn-cluster-join", "ovn-cluster-ovn-default", "tenant-shop")
	n.Delete(s)
	n.Gone(s)
}

// TestDropsOfRulesAreLoggedUntilATime: no event says that the time of the annotation has come.
func TestDropsOfRulesAreLoggedUntilATime(t *testing.T) {
	n := start(t)
	begin := time.Date(2026, 11, 30, 15, 0, 0, 0, time.UTC)
	var clock atomic.Pointer[time.Time]
	clock.Store(&begin)
	n.runWith(cache.Options{}, func(r *subnet.Reconciler) { r.Now = func() time.Time { return *clock.Load() } })
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.30.0.0/24", ACLs: []kubeovnv1.ACL{
		{Direction: "to-lport", Priority: 2000, Match: "tcp.dst == 22", Action: "drop"}, {Direction: "to-lport", Priority: 1900, Match: "ip4", Action: "allow-related"},
	}}}
	n.Create(s)
	logged := func(want string, meters int) {
		t.Helper()
		n.Eventually(func() string {
			var names []string
			for _, acl := range n.Database.Rows("ACL") {
				if acl["log"] == true {
					names = append(names, fmt.Sprint(acl["name"]))
				}
			}
			used := 0
			for _, meter := range n.Database.Rows("Meter") {
				if strings.HasPrefix(fmt.Sprint(meter["name"]), "private-") {
					used++
				}
			}
			ready := meta.IsStatusConditionTrue(n.subnet("shop").Status.Conditions, kubeovnv1.ConditionReady)
			if got := fmt.Sprint(names); got != want || used != meters || !ready {
				return fmt.Sprintf("%s log, by %d meters", got, used)
			}
			return ""
		})
	}
	logged("[]", 0)
	annotate := func(value string) {
		n.change(s, func() { s.Annotations = map[string]string{kubeovnv1.AnnotationLogDropsUntil.Key(): value} })
	}
	until := begin.Add(20 * time.Millisecond)
	annotate(until.Format(time.RFC3339Nano))
	logged("[acls/to-lport/2000/shop]", 1)
	clock.Store(&until)
	logged("[]", 0)
	annotate(until.Add(time.Minute).Format(time.RFC3339))
	logged("[acls/to-lport/2000/shop]", 1)
	annotate(until.Add(48 * time.Hour).Format(time.RFC3339))
	logged("[]", 0)
	n.Event(s, eventsv1.Event{Type: corev1.EventTypeWarning, Reason: subnet.EventAnnotationInvalid, Note: "write a time that is at most 1h0m0s ahead"})
}
