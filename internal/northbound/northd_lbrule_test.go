// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// A rule with an address in the pods' own subnet, in both families: ARP requests for the address are answered, packets to its
// port go to an endpoint, packets to other ports are not delivered, and every endpoint has a monitor with the right source
// address.
func TestNorthdServesAndChecksRules(t *testing.T) {
	server := nbtest.Start(t)
	northd := server.Northd()
	e := lead(t, server.Endpoint())
	applyNetwork(e)
	vips := []netip.Addr{netip.MustParseAddr("10.16.0.100"), netip.MustParseAddr("fd00:16::100")}
	e.apply(subnet("s1"), translate.Subnet(translate.SubnetInputs{
		Name: "s1", Vpc: kubeovnv1.DefaultVpc, Services: true, Proxied: vips,
		CIDRs:    []netip.Prefix{netip.MustParsePrefix("10.16.0.0/16"), netip.MustParsePrefix("fd00:16::/112")},
		Gateways: []netip.Addr{netip.MustParseAddr("10.16.0.1"), netip.MustParseAddr("fd00:16::1")},
	}))
	client, backend := translate.PodInputs{Name: "client", Node: "n1", Subnet: "s1"}, translate.PodInputs{Name: "backend", Node: "n1", Subnet: "s1"}
	e.apply(pod("client"), podOf(client, 0))
	e.apply(pod("backend"), podOf(backend, 1))
	in := translate.LBRuleInputs{
		Kind: translate.KindSwitchLBRule, Name: "web", Vpc: kubeovnv1.DefaultVpc, VIPs: vips, Endpoints: []netip.Addr{netip.MustParseAddr("10.16.0.3"), netip.MustParseAddr("fd00:16::3")},
		Ports: []translate.LBRulePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, Target: 8080}},
		Monitors: map[netip.Addr]translate.Monitor{
			netip.MustParseAddr("10.16.0.3"):  {Port: "backend.ns", Source: netip.MustParseAddr("10.16.0.99")},
			netip.MustParseAddr("fd00:16::3"): {Port: "backend.ns", Source: netip.MustParseAddr("fd00:16::99")},
		},
	}
	e.apply(translate.LBRuleOwner(translate.KindSwitchLBRule, "web"), translate.LBRule(in))
	northd.Await("the monitors", func(sb *nbtest.Server) bool { return len(sb.Rows("Service_Monitor")) == 2 })
	var monitors []string
	for _, row := range northd.Southbound.Rows("Service_Monitor") {
		monitors = append(monitors, fmt.Sprint(row["logical_port"], " ", row["ip"], " ", row["port"], " from ", row["src_ip"]))
	}
	slices.Sort(monitors)
	if got := strings.Join(monitors, ", "); got != "backend.ns 10.16.0.3 8080 from 10.16.0.99, backend.ns fd00:16::3 8080 from fd00:16::99" {
		t.Errorf("monitors: %s", got)
	}

	const mac = "eth.src == 02:01:00:00:00:02"
	who := northd.Trace("s1", `inport == "client.ns" && `+mac+` && eth.dst == ff:ff:ff:ff:ff:ff && arp.op == 1 && arp.spa == 10.16.0.2 && arp.tpa == 10.16.0.100`)
	if !strings.Contains(who, "arp.op = 2") || !strings.Contains(who, `output("client.ns")`) || strings.Contains(who, `output("backend.ns")`) {
		t.Errorf("ARP responder of the address:\n%s", who)
	}
	for _, c := range []struct{ addresses, port, want string }{
		{"ip4.src == 10.16.0.2 && ip4.dst == 10.16.0.100", "80", `output("backend.ns")`},
		{"ip6.src == fd00:16::2 && ip6.dst == fd00:16::100", "80", `output("backend.ns")`},
		{"ip4.src == 10.16.0.2 && ip4.dst == 10.16.0.100", "81", "arp.tpa = 0xa100064"},
	} {
		gateway := routerMAC(server, "ovn-cluster-s1")
		got := northd.Trace("s1", fmt.Sprintf(`inport == "client.ns" && %s && eth.dst == %s && %s && ip.ttl == 64 && tcp.dst == %s`, mac, gateway, c.addresses, c.port), "--ct=new", "--ct=new")
		if !strings.Contains(got, c.want) { // packets to another port cause an unanswered ARP request for the address
			t.Errorf("%s to port %s:\n%s", c.addresses, c.port, got)
		}
	}

	e.apply(translate.LBRuleOwner(translate.KindSwitchLBRule, "web"), nil)
	northd.Await("the end of the monitors", func(sb *nbtest.Server) bool { return len(sb.Rows("Service_Monitor")) == 0 })
	if n := len(server.Rows("Load_Balancer_Health_Check")); n != 0 {
		t.Errorf("%d health checks are left", n)
	}
}

func routerMAC(server *nbtest.Server, port string) string {
	for _, row := range server.Rows("Logical_Router_Port") {
		if row["name"] == port {
			return row["mac"].(string)
		}
	}
	return ""
}

// TestOnlyCheckedRulesCostNorthdFullComputations checks the cost of health checks that docs/user/services.md gives.
func TestOnlyCheckedRulesCostNorthdFullComputations(t *testing.T) {
	server := nbtest.Start(t)
	northd := server.Northd()
	e := lead(t, server.Endpoint())
	applyNetwork(e)
	backend := translate.PodInputs{Name: "backend", Node: "n1", Subnet: "s1"}
	e.apply(pod("backend"), podOf(backend, 1))
	rule := func(name, endpoint string, checked bool) {
		in := translate.LBRuleInputs{
			Kind: translate.KindSwitchLBRule, Name: name, Vpc: kubeovnv1.DefaultVpc, VIPs: []netip.Addr{netip.MustParseAddr("172.30.0.1")},
			Endpoints: []netip.Addr{netip.MustParseAddr("10.16.0.3"), netip.MustParseAddr(endpoint)},
			Ports:     []translate.LBRulePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, Target: 8080}},
		}
		if checked {
			in.Monitors = map[netip.Addr]translate.Monitor{in.Endpoints[0]: {Port: "backend.ns", Source: netip.MustParseAddr("10.16.0.99")}}
		}
		e.apply(translate.LBRuleOwner(translate.KindSwitchLBRule, name), translate.LBRule(in))
		northd.Await(endpoint, func(sb *nbtest.Server) bool {
			for _, row := range sb.Rows("Load_Balancer") {
				if strings.Contains(row["vips"].(map[string]string)["172.30.0.1:80"], endpoint+":") {
					return true
				}
			}
			return false
		})
	}
	for _, checked := range []bool{false, true} {
		name := fmt.Sprint("checked-", checked)
		rule(name, "10.16.0.10", checked)
		northd.Settled()
		before := northd.Recomputes("northd")
		rule(name, "10.16.0.11", checked)
		northd.Settled()
		if full := northd.Recomputes("northd") != before; full != checked {
			t.Errorf("a change of a rule with checks: %v; northd recomputes everything: %v", checked, full)
		}
		e.apply(translate.LBRuleOwner(translate.KindSwitchLBRule, name), nil)
		northd.Await("the end of it", func(sb *nbtest.Server) bool { return len(sb.Rows("Load_Balancer")) == 1 })
	}
}
