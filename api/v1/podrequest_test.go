// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
)

func TestParsePodRequest(t *testing.T) {
	request, err := ParsePodRequest(map[string]string{
		"ovn.kubernetes.io/logical_switch": "web",
		"ovn.kubernetes.io/ip_address":     "fd00::9",
		"ovn.kubernetes.io/mac_address":    "02-00-00-00-00-01",
		"ovn.kubernetes.io/ip_family":      "ipv6",
		"ovn.kubernetes.io/routes":         `[{"dst":"192.168.1.1/16","gw":"10.16.0.2"},{"gw":"fd00::2"},{"dst":"8.8.8.8"}]`,
	})
	if err != nil {
		t.Fatal(err)
	}
	want := PodRequest{
		Provider: ProviderOVN, Subnet: "web", Family: corev1.IPv6Protocol,
		Addresses: []netip.Addr{netip.MustParseAddr("fd00::9")},
		MAC:       net.HardwareAddr{2, 0, 0, 0, 0, 1},
		Routes: []Route{
			{Destination: netip.MustParsePrefix("192.168.0.0/16"), Gateway: netip.MustParseAddr("10.16.0.2")},
			{Gateway: netip.MustParseAddr("fd00::2")},
			{Destination: netip.MustParsePrefix("8.8.8.8/32")},
		},
	}
	if diff := cmp.Diff(want, request, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
		t.Error(diff)
	}
}

func TestAnInvalidRequestLeavesTheOthers(t *testing.T) {
	annotations := map[string]string{
		"ovn.kubernetes.io/ip_address":    "10.16.0.300",
		"ovn.kubernetes.io/north_gateway": "10.16.0.9",
		"ovn.kubernetes.io/port_vips":     "10.16.0.x",
	}
	request, err := ParsePodRequest(annotations)
	var invalid *AnnotationError
	if !errors.As(err, &invalid) || invalid.Key != "ovn.kubernetes.io/ip_address" {
		t.Errorf("error %v, want the one of the first annotation of the table", err)
	}
	want := PodRequest{Provider: ProviderOVN, NorthGateway: []netip.Addr{netip.MustParseAddr("10.16.0.9")}}
	if diff := cmp.Diff(want, request, cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty()); diff != "" {
		t.Error(diff)
	}
}

// Every pass of a pod reads its requests.
func TestAPodWithoutRequestsCostsNoAllocations(t *testing.T) {
	annotations := map[string]string{"other": "annotation"}
	for name, read := range map[string]func(){
		"ParsePodRequest": func() { _, _ = ParsePodRequest(annotations) },
		"CheckRequests":   func() { CheckRequests(OnPod, annotations) },
	} {
		if n := testing.AllocsPerRun(10, read); n > 1 { // the request
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}
