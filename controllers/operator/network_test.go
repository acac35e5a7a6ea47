// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"slices"
	"strings"
	"testing"

	"github.com/kiln-net/kiln/api/v1alpha1"
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
			name:    "the address of the network is no gateway",
			network: v1alpha1.Network{PodCIDRs: []string{"10.16.0.0/16"}, ServiceCIDRs: services, PodGateways: []string{"10.16.0.0"}},
			problem: "network.podGateways: 10.16.0.0 is the first or the last address of 10.16.0.0/16",
		},
		{
			name:    "the broadcast address is no gateway",
			network: v1alpha1.Network{PodCIDRs: []string{"fd00::/64", "10.16.0.0/16"}, ServiceCIDRs: services, PodGateways: []string{"fd00::ffff:ffff:ffff:ffff", "10.16.255.255"}},
			problem: "network.podGateways: 10.16.255.255 is the first or the last address of 10.16.0.0/16",
		},
		{
			name:    "a range from the higher to the lower address is refused",
			network: v1alpha1.Network{PodCIDRs: []string{"10.16.0.0/16"}, ServiceCIDRs: services, ExcludeIPs: []string{"10.16.0.9", "10.16.0.20..10.16.0.10"}},
			problem: `network.excludeIPs: "10.16.0.20..10.16.0.10" is not a range: write the lower address first`,
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

func TestNodesMayBeOnThePhysicalNetworkOfPods(t *testing.T) {
	n := v1alpha1.Network{PodCIDRs: []string{"10.30.0.0/16"}, ServiceCIDRs: []string{"10.96.0.0/12"}}
	fields := func() (names []string) {
		_, lists, err := resolveNetwork(n)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range lists {
			names = append(names, l.field)
		}
		return names
	}
	if got := fields(); !slices.Equal(got, []string{"network.podCIDRs", "network.joinCIDRs", "network.serviceCIDRs"}) {
		t.Errorf("in the overlay: %v", got)
	}
	n.PodVlan = "office"
	if got := fields(); !slices.Equal(got, []string{"network.joinCIDRs", "network.serviceCIDRs"}) {
		t.Errorf("on a physical network: %v", got)
	}
}
