// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cniserver

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	cni "github.com/containernetworking/cni/pkg/types"

	"github.com/kiln-net/kiln/cni/wire"
)

// An ADD ends with the agent's reason before the plugin gives up.
func TestAnAddEndsAtTheLimitOfThePlugin(t *testing.T) {
	for name, c := range map[string]struct {
		limit int64
		want  time.Duration
	}{
		"a plugin without a limit":                 {0, addLimit},
		"a plugin that has waited for the agent":   {72_000, 72 * time.Second},
		"a limit above the kubelet's":              {200_000, addLimit},
		"a limit that is no number of nanoseconds": {math.MaxInt64, addLimit},
		"a negative limit":                         {-1, addLimit},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &Server{}
				r := wire.Request{Provider: wire.DefaultProvider, ContainerID: "c", IfName: "eth0", NetNS: "/n", PodName: "p", PodNamespace: "n", Limit: c.limit}
				unlock, err := s.turn(t.Context(), "del", r.ContainerID, r.IfName)
				if err != nil {
					t.Fatal(err)
				}
				defer unlock()
				began := time.Now()
				_, err = s.add(t.Context(), r)
				if err == nil || cniError(err).Code != cni.ErrTryAgainLater {
					t.Errorf("an ADD whose turn does not come returns %v", err)
				}
				if took := time.Since(began); took != c.want {
					t.Errorf("it ended after %s, want %s", took, c.want)
				}
			})
		})
	}
}
