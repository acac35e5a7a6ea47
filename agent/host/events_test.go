// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
)

// No event reports changes before the first netlink subscription, or between two subscriptions.
func TestMissedChangesAreFoundOnceTheKernelIsWatched(t *testing.T) {
	ctx, looked := context.WithTimeout(t.Context(), time.Minute)
	defer looked()
	if err := (&Reconciler{}).listenOnce(ctx, looked); err != nil {
		t.Fatal(err)
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		t.Error("it listens, and does not look")
	}
}

// When listenOnce returns, netlink may have more updates than the channels hold. Its goroutines must end nevertheless.
func TestSubscriptionsEndWithUpdatesThatAreNotRead(t *testing.T) {
	nodetest.InNamespace(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		err := (&Reconciler{}).listenOnce(ctx, func() { // before the first update is read
			if ctx.Err() != nil {
				return
			}
			comeAndGo(t, 40)
			cancel()
		})
		if err != nil {
			t.Logf("it ended with %v", err) // the kernel may drop messages
		}
		eventually.Wait{For: "no goroutine of netlink is left"}.Empty(t, func() string {
			stacks := make([]byte, 1<<20)
			for stack := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
				if strings.Contains(stack, "SubscribeAt") {
					return stack
				}
			}
			return ""
		})
	})
}

// comeAndGo creates and deletes interfaces, one after the other. Each makes updates of links, addresses and routes.
func comeAndGo(t *testing.T, times int) {
	t.Helper()
	for range times {
		link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "outside"}}
		address, err := netlink.ParseAddr("192.0.2.2/24")
		must.Succeed(t, err)
		must.Succeed(t, netlink.LinkAdd(link))
		must.Succeed(t, netlink.LinkSetUp(link))
		must.Succeed(t, netlink.AddrAdd(link, address))
		must.Succeed(t, netlink.LinkDel(link))
	}
}

// TestAProcessThatDoesNotRunLosesNoMessages reads nothing while as many interfaces come and go as a node has pods.
func TestAProcessThatDoesNotRunLosesNoMessages(t *testing.T) {
	nodetest.InNamespace(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		const times = 100
		calls := 0
		err := (&Reconciler{}).listenOnce(ctx, func() {
			switch calls++; calls {
			case 1: // before the first update is read
				comeAndGo(t, times)
			case 1 + 2*times: // each address came and went
				cancel()
			}
		})
		must.Succeed(t, err)
	})
}
