// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"errors"
	"net"
	"sync"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/containernetworking/plugins/pkg/testutils"
	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/agent/sandbox"
)

// Remove does not wait for all that the kernel does, so what it promises has to hold when it returns.
func TestRemovedMeansGone(t *testing.T) {
	var wait sync.WaitGroup
	for range 20 {
		namespace, err := testutils.NewNS()
		must(t, err)
		t.Cleanup(func() { _ = errors.Join(namespace.Close(), testutils.UnmountNS(namespace)) })
		i := sandbox.Interface{NetNS: namespace.Path(), Name: "eth0", HostName: sandbox.HostName(newID(), "eth0", 0), MTU: podMTU, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}}
		wait.Go(func() {
			for range 5 { // under the same names, so that what is left would be in the way
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
				t.Errorf("remove what is gone: %v", err)
			}
		})
	}
	wait.Wait()
}

func TestCreateSaysWhatIsInTheWay(t *testing.T) {
	namespace, err := testutils.NewNS()
	must(t, err)
	t.Cleanup(func() { _ = errors.Join(namespace.Close(), testutils.UnmountNS(namespace)) })
	i := sandbox.Interface{NetNS: namespace.Path(), Name: "eth0", HostName: sandbox.HostName(newID(), "eth0", 0), MTU: podMTU, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}}
	must(t, i.Create())
	t.Cleanup(func() { must(t, sandbox.Remove(i.HostName)) })
	for what, change := range map[string]func(*sandbox.Interface){
		"a device in the container": func(i *sandbox.Interface) { i.HostName = sandbox.HostName(newID(), "eth0", 0) },
		"a device on the host":      func(i *sandbox.Interface) { i.Name = "eth1" },
	} {
		other := i
		change(&other)
		if err := other.Create(); !errors.Is(err, sandbox.ErrExists) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if intact, err := i.Intact(); !intact || err != nil {
		t.Errorf("what was there is no longer: %v", err)
	}
}
