// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"testing"
)

// Fits decides whether a pod of a StatefulSet keeps its address when it is created again.
func TestWhichAddressesFitAPool(t *testing.T) {
	for _, c := range []struct {
		name, exclude string
		held          string
		fits          bool
	}{
		{"one from outside of the pool", "10.0.0.14", "10.0.0.5", false},
		{"one from outside of a pool whose addresses are all excluded", "10.0.0.8/30", "10.0.0.5", false},
		{"one of the pool", "10.0.0.14", "10.0.0.9", true},
		{"one of the pool that was excluded later", "10.0.0.9", "10.0.0.9", true},
		{"one of the pool whose addresses were all excluded later", "10.0.0.8/30", "10.0.0.9", true},
		{"an excluded one from outside of the pool", "10.0.0.14", "10.0.0.14", false},
	} {
		a := with(t, spec(t, "10.0.0.0/28", "10.0.0.1"))
		allocate(t, a, "p", c.held)
		if err := errors.Join(
			a.SetPools("s", []Pool{poolOf(t, "a", "10.0.0.8/30")}),
			a.SetSubnet("s", spec(t, "10.0.0.0/28", "10.0.0.1", c.exclude)),
		); err != nil {
			t.Fatal(err)
		}
		if fits := a.Fits("p", Request{Subnet: "s", Pools: []string{"a"}}); fits != c.fits {
			t.Errorf("%s: Fits of pool a is %v for %s, want %v", c.name, fits, c.held, c.fits)
		}
	}
}
