// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"regexp"
	"strings"
	"testing"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/desired"
)

// TestPortNames checks that two ports between routers and switches never have the same name if taken names are known, and that
// none has the name of a pod's or a node's port.
func TestPortNames(t *testing.T) {
	for _, tt := range []struct {
		vpc, subnet      string
		taken            bool
		router, onSwitch string
	}{
		{"ovn-cluster", "ovn-default", false, "ovn-cluster-ovn-default", "ovn-default-ovn-cluster"},
		{"a", "b-c", true, "a-b-c_", "b-c-a_"},
		{"n1", "node", false, "n1-node", "node-n1_"},
		{"z.y", "x", false, "z.y-x_", "x-z.y_"},
	} {
		router, onSwitch := PortNames(tt.vpc, tt.subnet, tt.taken)
		for got, want := range map[string]string{router: tt.router, onSwitch: tt.onSwitch} {
			if hash, ok := strings.CutPrefix(got, want); !ok || strings.HasSuffix(want, "_") != (len(hash) == 8) {
				t.Errorf("a port of VPC %s and subnet %s is named %s, want %s", tt.vpc, tt.subnet, got, want)
			}
		}
	}
	one, _ := PortNames("a", "b-c", true)
	other, _ := PortNames("a-b", "c", true)
	if one == other {
		t.Errorf("two ports are named %s", one)
	}
}

// TestSetNames checks the names that matches depend on: they are identifiers, and two sets never share a name.
func TestSetNames(t *testing.T) {
	identifier := regexp.MustCompile(`^[a-zA-Z_.][a-zA-Z_.0-9]*$`)
	seen := map[string]desired.Ref{}
	for _, node := range []string{"a-b", "a.b", "a", "1", "worker-with-a-very-long-name.example.com"} {
		for _, vpc := range []string{"ovn-cluster", "b", "b-a"} {
			for _, r := range []desired.Ref{NodeEgressRef(vpc, node, ipfamily.IPv4), NodeEgressRef(vpc, node, ipfamily.IPv6)} {
				name := setName(r)
				if !identifier.MatchString(name) {
					t.Errorf("set %v is named %q, which is no identifier", r, name)
				}
				if other, ok := seen[name]; ok {
					t.Errorf("sets %v and %v are both named %q", r, other, name)
				}
				seen[name] = r
			}
		}
	}
}
