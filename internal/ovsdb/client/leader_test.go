// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/ovsdb/client"
)

func TestAMemberThatDoesNotLeadIsRefused(t *testing.T) {
	servers := nbtest.StartCluster(t, 3)
	leader := nbtest.Leader(servers)
	for _, s := range servers {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		session, err := client.Northbound(ctx, client.Options{Endpoints: []string{s.Endpoint()}})
		cancel()
		if err == nil {
			session.Close()
		}
		switch {
		case s == leader && err != nil:
			t.Errorf("the leader: %v", err)
		case s != leader && (err == nil || !strings.Contains(err.Error(), "does not lead")):
			t.Errorf("a follower: %v, want that it does not lead", err)
		}
	}
}
