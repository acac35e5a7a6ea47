// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bridges

import (
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/internal/node/bridges/journal"
	"github.com/kiln-net/kiln/internal/node/bridges/kernel"
	"github.com/kiln-net/kiln/internal/node/providerbridge"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

// CleanUp is the function of supervisor/ovs, which imports this package: see cleanup_test.go.
var CleanUp func(t *testing.T, o Options, config string) error

// TestARemovalOfKilnRestoresAMovedInterface removes Kiln from a node whose only interface has moved: while ovs-vswitchd still runs, and after everything was
// killed, as the job of a removal finds it.
func TestARemovalOfKilnRestoresAMovedInterface(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	p := newProvided(t)
	eth1 := must.Value(netlink.LinkByName("eth1"))
	must.Succeed(t, netlink.LinkSetMTU(eth1, 1450))
	must.Succeed(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: eth1.Attrs().Index, IP: net.ParseIP("2001:db8::77"), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 8}, State: netlink.NUD_PERMANENT}))
	p.before = must.Value(kernel.Read(must.Value(netlink.LinkByName("eth1"))))
	has := map[string]int{}
	for _, a := range p.before.Addresses {
		has["addresses of "+family(a.Prefix.Addr().Is4())]++
	}
	for _, r := range p.before.Routes {
		has["routes of "+family(r.Family == 4)]++
	}
	for _, n := range p.before.Neighbours {
		if n.Permanent {
			has["neighbours of "+family(n.Address.Is4())]++
		}
	}
	if len(has) != 6 || p.before.MTU != 1450 {
		t.Fatalf("eth1 has %v and MTU %d", has, p.before.MTU)
	}
	for _, c := range []struct {
		name   string
		remove func(*testing.T, *os.Process, func() string)
	}{
		{"while ovs-vswitchd runs", func(t *testing.T, process *os.Process, _ func() string) {
			must.Succeed(t, process.Signal(syscall.SIGSTOP)) // otherwise, it moves the interface again
			db := p.Database(t, make(chan struct{}))
			defer db.Close()
			must.Succeed(t, New(p.options).Release(t.Context(), db))
		}},
		{"after everything was killed", func(t *testing.T, _ *os.Process, kill func() string) {
			kill()
			must.Succeed(t, CleanUp(t, p.options, p.config))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd, ended, stop := p.start(t)
			defer func() {
				if text := stop(); t.Failed() {
					t.Log(text)
				}
			}()
			p.Request(t, ended, wanted)
			if ready := p.until(t, ended, providerbridge.StateReady); ready.Moved != 2 || ready.MTU != 1450 {
				t.Errorf("result: %+v", ready)
			}
			if left := must.Value(kernel.Read(must.Value(netlink.LinkByName("eth1")))); len(left.Addresses)+len(left.Routes) > 0 {
				t.Errorf("eth1 keeps %+v", left)
			}
			supervisortest.Eventually(t, "the gateway reaches the node by the bridge", p.reached)
			c.remove(t, cmd.Process, stop)
			if err := p.restored(); err != nil { // it is complete when the removal has ended
				t.Fatal(err)
			}
			supervisortest.Eventually(t, "the gateway reaches the node", p.reached)
			supervisortest.Eventually(t, "the bridge is removed", gone("br-net1"))
			if left := must.Value(journal.DirectoryIn(p.options.RunDir).List()); len(left) > 0 {
				t.Errorf("there are journals of %v", left)
			}
			stop()
			if err := p.restored(); err != nil {
				t.Fatal("after the end of everything", err)
			}
			supervisortest.Eventually(t, "the gateway reaches the node while nothing runs", p.reached)
		})
		if t.Failed() {
			return // the node is not as before
		}
	}
}

func family(is4 bool) string {
	if is4 {
		return "IPv4"
	}
	return "IPv6"
}
