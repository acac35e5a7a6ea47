// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kiln-net/kiln/internal/acllog"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/testing/eventually"
)

// TestDroppedPacketsAreLoggedInAReadableForm sends packets to a pod that a policy isolates, and from it, and reads the log of ovn-controller. The userspace datapath
// drops SCTP before the policy: it does not track it.
func TestDroppedPacketsAreLoggedInAReadableForm(t *testing.T) {
	server := nbtest.Start(t)
	northd := server.Northd()
	e := lead(t, server.Endpoint())
	applyNetwork(e)
	e.apply(translate.IsolationOwner(), translate.Isolation(translate.IsolationInputs{Nodes: []translate.PolicyNode{{Name: "n1"}}}))
	e.apply(translate.PodSetOwner("subjects"), translate.PodSet(translate.PodSetInputs{Name: "subjects", Subjects: true}))
	e.apply(translate.PolicyLogsOwner("ns"), translate.PolicyLogs("ns", 1000))
	owner := translate.NetworkPolicyOwner("ns", "closed")
	policy := translate.PolicyInputs{Owner: owner, Title: "np/closed.ns", Subjects: "subjects", Tier: translate.TierPolicy}
	for _, direction := range []translate.Direction{translate.Ingress, translate.Egress} {
		policy.Rules = append(policy.Rules, translate.PolicyRule{
			Key: string(direction) + "/default", Direction: direction, Priority: translate.PriorityPolicyDrop, Action: nb.ACLActionDrop, Any: true, Log: true,
		})
	}
	e.apply(owner, translate.Policy(policy))
	isolated := translate.PodPolicy{Subjects: []string{"subjects"}}
	e.apply(pod("closed"), podOf(translate.PodInputs{Name: "closed", Node: "n1", Subnet: "s1", Policy: isolated}, 0))
	e.apply(pod("other"), podOf(translate.PodInputs{Name: "other", Node: "n1", Subnet: "s1"}, 1))
	chassis := northd.Chassis("n1", map[string]string{"closed.ns": "closed", "other.ns": "other"})
	chassis.LogPackets()
	chassis.Sync()

	want := map[string]bool{}
	frames := map[string][]string{}
	for _, from := range []string{"other.ns", "closed.ns"} {
		source, destination, name := 3, 2, "ingress"
		if from == "closed.ns" {
			source, destination, name = 2, 3, "egress"
		}
		ethernet := fmt.Sprintf("in_port(1),eth(src=02:01:00:00:00:%02x,dst=02:01:00:00:00:%02x),", source, destination)
		v4 := fmt.Sprintf("eth_type(0x0800),ipv4(src=10.16.0.%d,dst=10.16.0.%d,tos=0,ttl=64,", source, destination)
		v6 := fmt.Sprintf("eth_type(0x86dd),ipv6(src=fd00:16::%d,dst=fd00:16::%d,label=0,tclass=0,hlimit=64,", source, destination)
		for _, tt := range []struct{ frame, protocol string }{
			{v4 + "proto=6,frag=no),tcp(src=40001,dst=80),tcp_flags(syn)", "tcp 40001 80"},
			{v6 + "proto=6,frag=no),tcp(src=40001,dst=80),tcp_flags(syn)", "tcp 40001 80"},
			{v4 + "proto=17,frag=no),udp(src=40002,dst=53)", "udp 40002 53"},
			{v6 + "proto=17,frag=no),udp(src=40002,dst=53)", "udp 40002 53"},
			{v4 + "proto=1,frag=no),icmp(type=8,code=0)", "icmp 8"},
			{v6 + "proto=58,frag=no),icmpv6(type=128,code=0)", "icmp 128"},
			{v4 + "proto=112,frag=no)", "112"},
			{v6 + "proto=112,frag=no)", "112"},
		} {
			frames[from] = append(frames[from], ethernet+tt.frame)
			ends := fmt.Sprintf("10.16.0.%d 10.16.0.%d", source, destination)
			if strings.HasPrefix(tt.frame, v6) {
				ends = fmt.Sprintf("fd00:16::%d fd00:16::%d", source, destination)
			}
			want[fmt.Sprintf("np/closed.ns/%s/default drop %t %s %s", name, name == "ingress", ends, tt.protocol)] = true
		}
	}
	eventually.Wait{For: "each dropped packet in the log"}.Empty(t, func() string {
		for port, list := range frames {
			chassis.Inject(port, list...) // each time: pinctrl of ovn-controller drops packets until it is connected to br-int, which Sync does not wait for
		}
		missing := map[string]bool{}
		for line := range want {
			missing[line] = true
		}
		for _, line := range chassis.Logged() {
			p, ok := acllog.Parse(line)
			if !ok {
				if strings.Contains(line, "acl_log") {
					t.Errorf("not read: %s", line)
				}
				continue
			}
			text := fmt.Sprint(p.ACL, " ", p.Verdict, " ", p.ToPort, " ", p.Source, " ", p.Destination, " ", p.Protocol)
			switch p.Protocol {
			case "tcp", "udp":
				text += fmt.Sprint(" ", p.SourcePort, " ", p.DestinationPort)
			case "icmp":
				text += fmt.Sprint(" ", p.Type)
			}
			if !want[text] {
				t.Errorf("unexpected packet: %s: %s", text, line)
			}
			delete(missing, text)
		}
		for line := range missing {
			return fmt.Sprintf("%d missing, such as %s", len(missing), line)
		}
		return ""
	})
}
