// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// TestWhatBecomesOfSCTP checks with ovn-trace that policy ports and Services of SCTP work: few lab kernels support SCTP.
func TestWhatBecomesOfSCTP(t *testing.T) {
	server := nbtest.Start(t)
	northd := server.Northd()
	e := lead(t, server.Endpoint())
	applyNetwork(e)
	applyPolicy(e, "p", "subjects", "peers")
	owner := translate.NetworkPolicyOwner("ns", "p")
	e.apply(owner, translate.Policy(translate.PolicyInputs{Owner: owner, Title: "p", Subjects: "subjects", Tier: translate.TierPolicy, Rules: []translate.PolicyRule{
		{
			Key: "ingress/0", Direction: translate.Ingress, Priority: translate.PriorityPolicyAllow, Action: nb.ACLActionAllowRelated,
			Sets: []translate.PodSetPart{{Name: "peers"}}, Ports: []translate.PolicyPort{{Protocol: "sctp", First: 9999, Last: 9999}},
		},
		{Key: "ingress/default", Direction: translate.Ingress, Priority: translate.PriorityPolicyDrop, Action: nb.ACLActionDrop, Any: true},
	}}))
	subject := translate.PodPolicy{Subjects: []string{"subjects"}}
	peer := translate.PodPolicy{Peers: []translate.PodSetPart{{Name: "peers"}}}
	e.apply(pod("server"), podOf(translate.PodInputs{Name: "server", Node: "n1", Subnet: "s1", Policy: subject}, 0))
	e.apply(pod("client"), podOf(translate.PodInputs{Name: "client", Node: "n1", Subnet: "s1", Policy: peer}, 1))
	in := translate.ServiceInputs{Vpc: kubeovnv1.DefaultVpc, Service: &corev1.Service{Spec: corev1.ServiceSpec{
		ClusterIPs: []string{"10.96.0.81", "fd00:96::81"}, Ports: []corev1.ServicePort{{Port: 38412, Protocol: corev1.ProtocolSCTP}},
	}}}
	in.Service.Name, in.Service.Namespace = "sctp", "ns"
	for family, address := range map[discoveryv1.AddressType]string{"IPv4": "10.16.0.2", "IPv6": "fd00:16::2"} {
		in.Slices = append(in.Slices, &discoveryv1.EndpointSlice{
			AddressType: family, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address}}},
			Ports: []discoveryv1.EndpointPort{{Name: new(""), Port: new(int32(9999)), Protocol: new(corev1.ProtocolSCTP)}},
		})
	}
	e.apply(service("sctp"), translate.Service(in))
	northd.Await("the Service", func(sb *nbtest.Server) bool {
		return len(sb.Rows("Load_Balancer")) == 2 && slices.Contains(portsOf(sb), "client.ns")
	})
	for _, tt := range []struct {
		to4, to6, rest string
		through        bool
	}{
		{"10.16.0.2", "fd00:16::2", "sctp.dst == 9999", true},
		{"10.16.0.2", "fd00:16::2", "sctp.dst == 9998", false},
		{"10.16.0.2", "fd00:16::2", "tcp.dst == 9999", false},
		{"10.96.0.81", "fd00:96::81", "sctp.dst == 38412", true},
		{"10.96.0.81", "fd00:96::81", "tcp.dst == 38412", false},
	} {
		for ip, to := range map[string]string{"ip4": tt.to4, "ip6": tt.to6} {
			from := map[string]string{"ip4": "10.16.0.3", "ip6": "fd00:16::3"}[ip]
			hardware := "02:01:00:00:00:02" // the server's
			if strings.Contains(to, "96") {
				hardware = gatewayMAC(server, "s1")
			}
			out := northd.Trace("s1", fmt.Sprintf(`inport == "client.ns" && eth.src == 02:01:00:00:00:03 && eth.dst == %s && %s.src == %s && %s.dst == %s && ip.ttl == 64 && %s`,
				hardware, ip, from, ip, to, tt.rest), "--ct=new", "--ct=new", "--ct=new", "--ct=new")
			if got := strings.Contains(out, `output("server.ns")`); got != tt.through {
				t.Errorf("%s to %s gets through: %t\n%s", tt.rest, to, got, out)
			}
		}
	}
}

// gatewayMAC is the address of a subnet's router port.
func gatewayMAC(server *nbtest.Server, subnet string) string {
	for _, row := range server.Rows("Logical_Router_Port") {
		if row["name"] == kubeovnv1.DefaultVpc+"-"+subnet {
			return row["mac"].(string)
		}
	}
	return ""
}
