// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/certs"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/supervisor/adminapi"
	"github.com/kiln-net/kiln/internal/supervisor/ovs"
)

func TestNetworksAreResolvedOrRefusedWithAdvice(t *testing.T) {
	services := []string{"10.96.0.0/12"}
	for _, c := range []struct {
		name    string
		network v1alpha1.Network
		join    []string
		problem string
	}{
		{
			name:    "an IPv4 network gets the IPv4 join network",
			network: v1alpha1.Network{PodCIDRs: []string{"10.16.0.0/16"}, ServiceCIDRs: services},
			join:    []string{"100.64.0.0/16"},
		},
		{
			name:    "the join networks are in the order of the pods' families",
			network: v1alpha1.Network{PodCIDRs: []string{"fd00:10:16::/112", "10.16.0.0/16"}, ServiceCIDRs: services},
			join:    []string{"fd00:100:64::/112", "100.64.0.0/16"},
		},
		{
			name:    "a given join network is kept",
			network: v1alpha1.Network{PodCIDRs: []string{"10.16.0.0/16"}, JoinCIDRs: []string{"100.65.0.0/16"}, ServiceCIDRs: services},
			join:    []string{"100.65.0.0/16"},
		},
		{
			name:    "an invalid CIDR is named with an example",
			network: v1alpha1.Network{PodCIDRs: []string{"10.16.0.0"}, ServiceCIDRs: services},
			problem: `network.podCIDRs: "10.16.0.0" is not a CIDR: write it like`,
		},
		{
			name:    "bits beyond the length are shown without",
			network: v1alpha1.Network{PodCIDRs: []string{"10.16.1.0/16"}, ServiceCIDRs: services},
			problem: "write 10.16.0.0/16",
		},
		{
			name:    "two CIDRs of one family are one too many",
			network: v1alpha1.Network{PodCIDRs: []string{"10.16.0.0/16", "10.17.0.0/16"}, ServiceCIDRs: services},
			problem: "give one per family",
		},
		{
			name:    "a network without room is refused",
			network: v1alpha1.Network{PodCIDRs: []string{"10.16.0.0/31"}, ServiceCIDRs: services},
			problem: "leaves no room",
		},
		{
			name:    "an IPv4 address in IPv6 form is refused",
			network: v1alpha1.Network{PodCIDRs: []string{"::ffff:10.16.0.0/112"}, ServiceCIDRs: services},
			problem: "write it as IPv4",
		},
		{
			name:    "services overlapping pods",
			network: v1alpha1.Network{PodCIDRs: []string{"10.96.16.0/20"}, ServiceCIDRs: services},
			problem: "network.podCIDRs 10.96.16.0/20 overlaps network.serviceCIDRs 10.96.0.0/12: change one of them",
		},
		{
			name:    "the default join network counts too",
			network: v1alpha1.Network{PodCIDRs: []string{"100.64.0.0/10"}, ServiceCIDRs: services},
			problem: "network.podCIDRs 100.64.0.0/10 overlaps network.joinCIDRs 100.64.0.0/16",
		},
		{
			name: "a family of pods without a join network",
			network: v1alpha1.Network{
				PodCIDRs: []string{"10.16.0.0/16", "fd00:10:16::/112"}, JoinCIDRs: []string{"100.64.0.0/16"}, ServiceCIDRs: services,
			},
			problem: "no CIDR of the family of fd00:10:16::/112",
		},
		{
			name: "a join network without pods of its family",
			network: v1alpha1.Network{
				PodCIDRs: []string{"10.16.0.0/16"}, JoinCIDRs: []string{"100.64.0.0/16", "fd00:100:64::/112"}, ServiceCIDRs: services,
			},
			problem: "give both the same families",
		},
		{
			name:    "services that no pod could reach",
			network: v1alpha1.Network{PodCIDRs: []string{"fd00:10:16::/112"}, ServiceCIDRs: services},
			problem: "no family in common",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			network, _, err := resolveNetwork(c.network)
			switch {
			case c.problem == "" && err != nil:
				t.Fatal(err)
			case c.problem != "" && (err == nil || !strings.Contains(err.Error(), c.problem)):
				t.Fatalf("the problem is %v; want %q", err, c.problem)
			case c.problem == "" && !slices.Equal(network.JoinCIDRs, c.join):
				t.Errorf("join networks %v; want %v", network.JoinCIDRs, c.join)
			}
		})
	}
}

func TestTheFirstDatabaseGoesToTheOldestUsableNode(t *testing.T) {
	node := func(name string, age int64, change func(*corev1.Node)) corev1.Node {
		n := corev1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name: name, CreationTimestamp: metav1.Unix(1000-age, 0), Labels: map[string]string{"node-role.kubernetes.io/control-plane": ""},
			},
			Status: corev1.NodeStatus{
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse}},
				Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}},
			},
		}
		if change != nil {
			change(&n)
		}
		return n
	}
	nodes := []corev1.Node{
		node("a", 50, nil),
		node("b", 50, nil),
		node("cordoned", 90, func(n *corev1.Node) { n.Spec.Unschedulable = true }),
		node("never-heard", 90, func(n *corev1.Node) { n.Status.Conditions = nil }),
		node("silent", 90, func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }),
		node("without-address", 90, func(n *corev1.Node) { n.Status.Addresses = nil }),
		node("worker", 90, func(n *corev1.Node) { n.Labels = nil }),
	}
	p := &pass{nodes: nodes, cluster: &v1alpha1.OVNCluster{}}
	if chosen := p.chooseNode(nil); chosen == nil || chosen.Name != "a" {
		t.Errorf("chose %v; want a", chosen)
	}
	if chosen := p.chooseNode([]v1alpha1.DatabaseMember{{Node: "a"}}); chosen == nil || chosen.Name != "b" {
		t.Errorf("next to a member on a it chose %v; want b", chosen)
	}
	p.cluster.Spec.Central.NodeSelector = map[string]string{"infra": "true"}
	if chosen := p.chooseNode(nil); chosen != nil {
		t.Errorf("without a match: %v", chosen)
	}
}

func TestMembersAreAskedWhereTheyAnswer(t *testing.T) {
	if render.Northbound.AdminPort != adminapi.PortNorthbound || render.Southbound.AdminPort != adminapi.PortSouthbound {
		t.Errorf("admin ports are %d and %d; members answer on %d and %d", render.Northbound.AdminPort, render.Southbound.AdminPort,
			adminapi.PortNorthbound, adminapi.PortSouthbound)
	}
	if render.ChassisSigner != ovs.SignerName {
		t.Errorf("requests to %q are granted; nodes ask %q", render.ChassisSigner, ovs.SignerName)
	}
	if certs.ChassisTrustFile != ovs.ChassisTrustFile {
		t.Errorf("the CA of chassis certificates is written to %q; nodes read %q", certs.ChassisTrustFile, ovs.ChassisTrustFile)
	}
}

func TestClientsAreTheNodesOfThePlacementsAndOfMembers(t *testing.T) {
	node := func(name, label string, addresses ...string) corev1.Node {
		n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{label: ""}}}
		for _, a := range addresses {
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
		}
		return n
	}
	nodes := []corev1.Node{
		node("control", render.ControlPlaneLabel, "192.0.2.1", "2001:db8::1"), node("infra", "infra", "192.0.2.5"), node("worker", "worker", "192.0.2.9"),
	}
	var spec v1alpha1.OVNClusterSpec
	spec.Controller.NodeSelector = map[string]string{"infra": ""}
	status := v1alpha1.OVNClusterStatus{Northbound: v1alpha1.DatabaseStatus{Members: []v1alpha1.DatabaseMember{
		{Node: "control", Address: "192.0.2.1"}, {Node: "gone", Address: "192.0.2.7"},
	}}}
	got := clientAddresses(nodes, spec, status)
	if want := []string{"192.0.2.1", "192.0.2.5", "192.0.2.7", "2001:db8::1"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
