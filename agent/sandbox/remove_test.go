// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/agent/sandbox"
)

// Remove returns before the kernel has freed the devices, so its guarantees must hold when it returns.
func TestRemovedMeansGone(t *testing.T) {
	var wait sync.WaitGroup
	for range 20 {
		i, namespace := describe(t)
		wait.Go(func() {
			for range 5 { // with the same names, so that leftovers would conflict
				if err := errors.Join(i.Create(), sandbox.Remove(i.HostName)); err != nil {
					t.Error(err)
				}
				if there, err := sandbox.HasLink(i.HostName); there || err != nil {
					t.Errorf("the host's end is there: %v, %v", there, err)
				}
				err := namespace.Do(func(ns.NetNS) error {
					_, err := netlink.LinkByName("eth0")
					return err
				})
				if !errors.As(err, &netlink.LinkNotFoundError{}) {
					t.Errorf("the container's end: %v", err)
				}
			}
			if err := sandbox.Remove(i.HostName); err != nil {
				t.Errorf("removal of a missing interface: %v", err)
			}
		})
	}
	wait.Wait()
}
