// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cniserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	cni "github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/agent/ovs"
	"github.com/kiln-net/kiln/agent/sandbox"
	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/cni/wire"
)

func dual() v1.PodNetwork {
	return v1.PodNetwork{
		Addresses: []netip.Addr{netip.MustParseAddr("10.16.0.5"), netip.MustParseAddr("fd00:10:16::5")},
		CIDRs:     []netip.Prefix{netip.MustParsePrefix("10.16.0.0/16"), netip.MustParsePrefix("fd00:10:16::/112")},
		Gateways:  []netip.Addr{netip.MustParseAddr("10.16.0.1"), netip.MustParseAddr("fd00:10:16::1")},
		MAC:       net.HardwareAddr{2, 0, 0, 0, 0, 5},

		LogicalSwitch: "ovn-default",
	}
}

func TestRoutes(t *testing.T) {
	route := func(to, via string) sandbox.Route {
		return sandbox.Route{To: netip.MustParsePrefix(to), Via: netip.MustParseAddr(via)}
	}
	defaults := []sandbox.Route{route("0.0.0.0/0", "10.16.0.1"), route("::/0", "fd00:10:16::1")}
	single := dual()
	single.Addresses = single.Addresses[1:]
	for name, c := range map[string]struct {
		network    v1.PodNetwork
		annotation string
		conf       string
		noDefault  bool
		want       []sandbox.Route
		err        string
	}{
		"both families":                              {network: dual(), want: defaults},
		"one family of a dual subnet":                {network: single, want: defaults[1:]},
		"routes of the configuration and the pod":    {network: dual(), conf: `[{"dst":"192.0.2.0/24"}]`, annotation: `[{"dst":"198.51.100.0/24","gw":"10.16.0.9"}]`, want: append(defaults[:2:2], route("192.0.2.0/24", "10.16.0.1"), route("198.51.100.0/24", "10.16.0.9"))},
		"a route of a family that the pod has not":   {network: single, annotation: `[{"dst":"192.0.2.0/24"}]`, err: "no gateway of that family"},
		"a route with a gateway only":                {network: dual(), annotation: `[{"gw":"10.16.0.9"}]`, want: []sandbox.Route{route("::/0", "fd00:10:16::1"), route("0.0.0.0/0", "10.16.0.9")}},
		"a destination with bits behind its length":  {network: dual(), conf: `[{"dst":"192.0.2.1/24"}]`, annotation: `[{"dst":"198.51.100.7"}]`, want: append(defaults[:2:2], route("192.0.2.0/24", "10.16.0.1"), route("198.51.100.7/32", "10.16.0.1"))},
		"no default route":                           {network: dual(), noDefault: true},
		"one of the pod's own instead":               {network: dual(), noDefault: true, annotation: `[{"gw":"10.16.0.9"},{"dst":"192.0.2.0/24"}]`, want: []sandbox.Route{route("0.0.0.0/0", "10.16.0.9"), route("192.0.2.0/24", "10.16.0.1")}},
		"a gateway outside the subnet":               {network: dual(), annotation: `[{"dst":"192.0.2.0/24","gw":"10.33.0.1"}]`, err: "its gateway 10.33.0.1 is not in a CIDR of the pod's subnet ovn-default: correct"},
		"a gateway of a family that the pod has not": {network: single, annotation: `[{"gw":"10.16.0.9"}]`, err: "its gateway 10.16.0.9 is not in"},
		"a link-local gateway":                       {network: dual(), noDefault: true, annotation: `[{"gw":"fe80::1"}]`, want: []sandbox.Route{route("::/0", "fe80::1")}},
		"an annotation that is no list":              {network: dual(), annotation: `{}`, err: "ovn.kubernetes.io/routes"},
	} {
		t.Run(name, func(t *testing.T) {
			r := wire.Request{Provider: v1.ProviderOVN}
			if c.conf != "" {
				if err := json.Unmarshal([]byte(c.conf), &r.Routes); err != nil {
					t.Fatal(err)
				}
			}
			pod := &metav1.PartialObjectMetadata{}
			pod.Annotations = map[string]string{v1.AnnotationDefaultRoute.Key(): fmt.Sprint(!c.noDefault)}
			if c.annotation != "" {
				pod.Annotations[v1.AnnotationRoutes.Key()] = c.annotation
			}
			got, err := routes(r, pod, c.network)
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Fatalf("got error %v, want %q", err, c.err)
			}
			if err == nil && !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestResultIsReadBackInEveryVersion(t *testing.T) {
	addresses, err := prefixes(dual())
	if err != nil {
		t.Fatal(err)
	}
	want := sandbox.Interface{NetNS: "/run/netns/x", Name: "eth0", HostName: "h", MAC: dual().MAC, MTU: 1400, Addresses: addresses,
		Routes: []sandbox.Route{{To: netip.MustParsePrefix("0.0.0.0/0"), Via: dual().Gateways[0]}, {To: netip.MustParsePrefix("::/0"), Via: dual().Gateways[1]}}}
	result := resultOf(want, dual(), cni.DNS{Nameservers: []string{"10.96.0.10"}})
	if got := result.IPs[1].Gateway.String(); got != "fd00:10:16::1" {
		t.Errorf("the second address's gateway is %s", got)
	}
	want.HostName = ""
	for _, version := range []string{"0.4.0", "1.0.0", "1.1.0"} {
		converted, err := result.GetAsVersion(version)
		if err != nil {
			t.Fatal(err)
		}
		back, err := types100.NewResultFromResult(converted)
		if err != nil {
			t.Fatal(err)
		}
		got, err := interfaceIn(back, want.NetNS, want.Name)
		if err != nil {
			t.Fatal(err)
		}
		if version == "0.4.0" { // version 0.4.0 has no MTU
			got.MTU = want.MTU
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("version %s: got %+v, want %+v", version, got, want)
		}
	}
	if _, err := interfaceIn(result, "/run/netns/other", "eth0"); err == nil {
		t.Error("another container's result is taken")
	}
}

func TestErrorCodes(t *testing.T) {
	for name, c := range map[string]struct {
		err    error
		code   uint
		status int
	}{
		"time is up":            {fmt.Errorf("x: %w", context.DeadlineExceeded), cni.ErrTryAgainLater, 503},
		"no Open vSwitch":       {fmt.Errorf("x: %w", ovs.ErrDisconnected), cni.ErrTryAgainLater, 503},
		"no bridge":             {ovs.ErrNoBridge, cni.ErrTryAgainLater, 503},
		"no namespace":          {fmt.Errorf("x: %w", sandbox.ErrNoNamespace), cni.ErrInvalidNetNS, 400},
		"an error with a code":  {fmt.Errorf("x: %w", cni.NewError(cni.ErrInvalidEnvironmentVariables, "m", "")), cni.ErrInvalidEnvironmentVariables, 400},
		"something unforeseen":  {errors.New("x"), cni.ErrInternal, 500},
		"a port that is no use": {&ovs.PortError{Port: "p", Reason: "r"}, cni.ErrInternal, 500},
	} {
		t.Run(name, func(t *testing.T) {
			got := cniError(c.err)
			if got.Code != c.code || statusOf(got) != c.status {
				t.Errorf("code %d, status %d", got.Code, statusOf(got))
			}
		})
	}
}
