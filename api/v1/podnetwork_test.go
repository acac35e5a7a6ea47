// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestPodNetworkSurvivesItsAnnotations(t *testing.T) {
	full := PodNetwork{
		Provider: ProviderOVN, UID: "u-1", Allocated: true, Routed: true,
		Addresses:     []netip.Addr{netip.MustParseAddr("10.16.0.5"), netip.MustParseAddr("fd00::5")},
		MAC:           net.HardwareAddr{6, 0x4b, 10, 16, 0, 5},
		CIDRs:         []netip.Prefix{netip.MustParsePrefix("10.16.0.0/16"), netip.MustParsePrefix("fd00::/64")},
		Gateways:      []netip.Addr{netip.MustParseAddr("10.16.0.1"), netip.MustParseAddr("fd00::1")},
		LogicalSwitch: "ovn-default", LogicalRouter: DefaultVpc, MTU: 1400, NICType: PodNICTypeVeth,
	}
	want := map[string]string{
		"ovn.kubernetes.io/pod_uid":        "u-1",
		"ovn.kubernetes.io/allocated":      "true",
		"ovn.kubernetes.io/routed":         "true",
		"ovn.kubernetes.io/ip_address":     "10.16.0.5,fd00::5",
		"ovn.kubernetes.io/mac_address":    "06:4b:0a:10:00:05",
		"ovn.kubernetes.io/cidr":           "10.16.0.0/16,fd00::/64",
		"ovn.kubernetes.io/gateway":        "10.16.0.1,fd00::1",
		"ovn.kubernetes.io/logical_switch": "ovn-default",
		"ovn.kubernetes.io/logical_router": "ovn-cluster",
		"ovn.kubernetes.io/mtu":            "1400",
		"ovn.kubernetes.io/pod_nic_type":   "veth-pair",
	}
	if diff := cmp.Diff(want, full.Annotations()); diff != "" {
		t.Error(diff)
	}
	equate := []cmp.Option{cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})}
	got, err := ParsePodNetwork(want)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(full, got, equate...); diff != "" {
		t.Error(diff)
	}
	full.Provider = "net.default.ovn"
	got, err = ParsePodNetworkOf(full.Annotations(), full.Provider)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(full, got, equate...); diff != "" {
		t.Error(diff)
	}
	if empty, err := ParsePodNetwork(full.Annotations()); err != nil || empty.Allocated || len(empty.Addresses) > 0 {
		t.Errorf("another provider's annotations were read: %+v, %v", empty, err)
	}
	if n := len(PodNetwork{}.Annotations()); n != 0 {
		t.Errorf("%d annotations of nothing", n)
	}
}

func TestPodNetworkIsForOnePod(t *testing.T) {
	tests := []struct {
		name    string
		network PodNetwork
		want    bool
	}{
		{"its own", PodNetwork{Allocated: true, UID: "a"}, true},
		{"a pod's of the same name before it", PodNetwork{Allocated: true, UID: "b"}, false},
		{"one without a UID", PodNetwork{Allocated: true}, false},
		{"a mere request", PodNetwork{UID: "a"}, false},
	}
	for _, tt := range tests {
		if got := tt.network.IsFor("a"); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
	if (PodNetwork{Allocated: true}).IsFor("") {
		t.Error("nothing is for a pod without UID")
	}
}

func TestUnreadableAnnotationsAreNamed(t *testing.T) {
	tests := []struct {
		annotation Annotation
		value      string
		err        string
	}{
		{AnnotationIPAddress, "10.16.0.9,", "unable to parse IP"},
		{AnnotationIPAddress, "10.16.0.9,10.16.0.8", "at most one address of each family"},
		{AnnotationMACAddress, "02:00", "invalid MAC address"},
		{AnnotationMACAddress, "00:00:00:00:00:00", "not a unicast"},
		{AnnotationMACAddress, "02:00:00:00:00:00:00:01", "48 bits"},
		{AnnotationIPFamily, "6", "must be ipv4 or ipv6"},
		{AnnotationRoutes, "10.0.0.0/8", "must be a JSON list"},
		{AnnotationRoutes, `[{"dst":"10.0.0.0/33"}]`, "prefix length out of range"},
		{AnnotationRoutes, `[{"dst":"10.0.0.0/8","gw":"fd00::1"}]`, "other family"},
		{AnnotationRoutes, `[{}]`, "needs a dst or a gw"},
	}
	for _, tt := range tests {
		_, err := ParsePodRequest(map[string]string{tt.annotation.Key(): tt.value})
		var annotationError *AnnotationError
		if !errors.As(err, &annotationError) || annotationError.Key != tt.annotation.Key() || !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s=%s: got %v, want %q", tt.annotation, tt.value, err, tt.err)
		}
	}
	_, err := ParsePodRequest(map[string]string{AnnotationIPAddress.Key(): "fd00::9,10.16.0.9", AnnotationIPFamily.Key(): "IPv6"})
	if err == nil || !strings.Contains(err.Error(), "10.16.0.9 is not of family IPv6") {
		t.Errorf("an address of another family than the one asked for: %v", err)
	}
	if _, err := ParsePodNetwork(map[string]string{AnnotationCIDR.Key(): "10.0.0.0"}); err == nil {
		t.Error("a wrong cidr was read")
	}
}
