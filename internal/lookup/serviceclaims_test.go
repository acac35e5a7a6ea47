// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lookup

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kiln-net/kiln/internal/validation"
)

func TestClaimsOfServices(t *testing.T) {
	claim := func(service types.NamespacedName, eip, vpc string, last bool, ports ...uint16) ServiceClaim {
		c := NewServiceClaim(service)
		c.Eip, c.Vpc, c.Last, c.Addresses = eip, vpc, last, []netip.Addr{netip.MustParseAddr("192.0.2.30")}
		for _, port := range ports {
			c.Fronts = append(c.Fronts, validation.Front{Protocol: corev1.ProtocolTCP, Port: port})
		}
		return c
	}
	text := func(c validation.ExternalClaim) string {
		return fmt.Sprint(c.Name, " ", c.Eip, " ", c.Vpc, " ", c.Last, " ", c.Fronts)
	}
	a, b := types.NamespacedName{Namespace: "shop", Name: "a"}, types.NamespacedName{Namespace: "shop", Name: "b"}
	var claims ServiceClaims
	var seen []string
	claims.Observe(func(c ServiceClaim) { seen = append(seen, text(c.ExternalClaim)) })
	saw := func(what string, want ...string) {
		t.Helper()
		if !slices.Equal(seen, want) {
			t.Errorf("%s: the observer got %q, want %q", what, seen, want)
		}
		seen = nil
	}
	has := func(eip string, want ...string) {
		t.Helper()
		var got []string
		for _, c := range claims.Of(eip) {
			got = append(got, text(c))
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("OvnEip %s has %q, want %q", eip, got, want)
		}
	}
	const a80, a80Last, b81 = "shop/a e blue false [80/TCP]", "shop/a e blue true [80/TCP]", "shop/b e blue false [81/TCP]"

	claims.Set(a, claim(a, "e", "blue", false, 80))
	saw("a new claim", a80)
	claims.Set(b, claim(b, "e", "blue", false, 81))
	saw("a second Service", b81)
	has("e", a80, b81)
	claims.Set(a, claim(a, "e", "blue", false, 80))
	saw("the same claim")
	claims.Set(a, claim(a, "e", "blue", true, 80), claim(a, "f", "blue", false, 80))
	saw("an applied claim and one to another OvnEip", a80, a80Last, "shop/a f blue false [80/TCP]")
	has("e", a80Last, b81)
	has("f", "shop/a f blue false [80/TCP]")
	if n := len(claims.At("blue", netip.MustParseAddr("192.0.2.30"))); n != 3 {
		t.Errorf("%d claims at the address", n)
	}
	if n := len(claims.At("red", netip.MustParseAddr("192.0.2.30"))) + len(claims.At("blue", netip.MustParseAddr("192.0.2.31"))); n != 0 {
		t.Errorf("%d claims at other addresses", n)
	}
	for want, c := range map[bool]ServiceClaim{
		true: claim(b, "e", "red", true, 81), false: claim(b, "e", "blue", false, 81),
	} {
		if got := claim(a, "e", "blue", false, 80).Concerns(c); got != want {
			t.Errorf("a claim of VPC %s with another port is concerned: %t", c.Vpc, got)
		}
	}
	idle := claim(b, "e", "red", false, 80)
	if !idle.AppliedElsewhere(claims.Of("e")) || idle.AppliedElsewhere(claims.Of("f")) {
		t.Errorf("the claims are %v and %v", claims.Of("e"), claims.Of("f"))
	}
	idle.Idle = true
	claims.Set(b, idle)
	saw("an idle claim", b81, "shop/b e red false [80/TCP]")
	has("e", a80Last)
	if n := len(claims.At("red", netip.MustParseAddr("192.0.2.30"))); n != 0 || len(claims.ServicesOf("e")) != 2 || len(claims.OfService(b)) != 1 {
		t.Errorf("%d idle claims at the address, and %v of the OvnEip", n, claims.ServicesOf("e"))
	}
	claims.Set(b, claim(b, "e", "blue", false, 81))
	saw("a claim that is no longer idle", "shop/b e red false [80/TCP]", b81)
	claims.Set(a)
	saw("no claim", a80Last, "shop/a f blue false [80/TCP]")
	has("e", b81)
	has("f")
	if services := claims.ServicesOf("e"); len(services) != 1 || services[0] != b {
		t.Errorf("the Services are %v", services)
	}
	claims.Set(b)
	if n := len(claims.claims) + claims.services.Len(); n != 0 || len(claims.Of("e")) != 0 {
		t.Errorf("%d entries are left: %s", n, strings.Join(seen, ", "))
	}
}
