// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/agent/sandbox"
	"github.com/kiln-net/kiln/internal/testing/must"
)

func TestRoutesToTheOverlayChangeAndOthersStay(t *testing.T) {
	i, namespace := newInterface(t)
	i.Addresses = []netip.Prefix{netip.MustParsePrefix("10.30.0.9/24"), netip.MustParsePrefix("fd00:30::9/64")}
	route := func(to, via string) sandbox.Route {
		return sandbox.Route{To: netip.MustParsePrefix(to), Via: netip.MustParseAddr(via)}
	}
	own := route("10.99.0.0/16", "10.30.0.7") // the pod's annotation has it
	i.Routes = []sandbox.Route{route("0.0.0.0/0", "10.30.0.254"), route("::/0", "fd00:30::fe"), own}
	must.Succeed(t, i.Configure())
	routes := func() (out []string) {
		must.Succeed(t, namespace.Do(func(ns.NetNS) error {
			list, err := netlinksafe.RouteList(nil, netlink.FAMILY_ALL)
			for _, r := range list {
				if r.Gw != nil {
					out = append(out, r.Dst.String()+" via "+r.Gw.String())
				}
			}
			return err
		}))
		slices.Sort(out)
		return out
	}
	static := []string{"0.0.0.0/0 via 10.30.0.254", "10.99.0.0/16 via 10.30.0.7", "::/0 via fd00:30::fe"}
	for _, step := range []struct {
		want []sandbox.Route
		more []string
	}{
		{[]sandbox.Route{route("10.16.0.0/16", "10.30.0.1"), route("fd00:16::/64", "fd00:30::1"), route("10.99.0.0/16", "10.30.0.1")},
			[]string{"10.16.0.0/16 via 10.30.0.1", "fd00:16::/64 via fd00:30::1"}},
		{[]sandbox.Route{route("10.16.0.0/16", "10.30.0.2"), route("10.17.0.0/16", "10.30.0.2")},
			[]string{"10.16.0.0/16 via 10.30.0.2", "10.17.0.0/16 via 10.30.0.2"}},
		{nil, nil},
	} {
		must.Succeed(t, i.RouteOverlay(step.want))
		want := slices.Concat(static, step.more)
		slices.Sort(want)
		if got := routes(); !slices.Equal(got, want) {
			t.Errorf("routes are %v, want %v", got, want)
		}
		must.Succeed(t, i.Verify())
	}
}
