// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lbrule

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/internal/northbound/translate"
)

func TestEndpointsAreSplitByFamilyAndNumber(t *testing.T) {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "rlr-web"}}
	for name, c := range map[string]struct {
		v4, v6 int
		want   string
	}{
		"none":                       {0, 0, ""},
		"one family":                 {2, 0, "rlr-web-ipv4-0:2"},
		"the other":                  {0, 2, "rlr-web-ipv6-0:2"},
		"as many as fit":             {1000, 0, "rlr-web-ipv4-0:1000"},
		"as many as a rule can have": {1001, 23, "rlr-web-ipv4-0:1000 rlr-web-ipv4-1:1 rlr-web-ipv6-0:23"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &state{in: translate.LBRuleInputs{Ports: []translate.LBRulePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, Target: 8080}}}}
			for i := range max(c.v4, c.v6) {
				if i < c.v6 {
					s.in.Endpoints = append(s.in.Endpoints, netip.MustParseAddr(fmt.Sprintf("fd00::%x", i+1)))
				}
				if i < c.v4 {
					a := netip.AddrFrom4([4]byte{10, 0, byte(i / 256), byte(i % 256)})
					s.in.Endpoints = append(s.in.Endpoints, a, a) // duplicates count once
				}
			}
			var parts []string
			for _, slice := range slicesOf(service, s) {
				parts = append(parts, fmt.Sprintf("%s:%d", slice.Name, len(slice.Endpoints)))
				for _, e := range slice.Endpoints {
					if is4 := netip.MustParseAddr(e.Addresses[0]).Is4(); is4 != (slice.AddressType == "IPv4") {
						t.Errorf("%s is in a slice of %s", e.Addresses[0], slice.AddressType)
					}
				}
			}
			if got := strings.Join(parts, " "); got != c.want {
				t.Errorf("slices %q, want %q", got, c.want)
			}
		})
	}
}
