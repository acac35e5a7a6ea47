// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	agentovs "github.com/kiln-net/kiln/agent/ovs"
	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

// arrivals records packets in the order of their arrival.
type arrivals struct {
	mu   sync.Mutex
	seen []string
}

func (a *arrivals) add(text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen = append(a.seen, text)
}

// last returns the last arrival, and forget begins with no arrival.
func (a *arrivals) last() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.seen) == 0 {
		return ""
	}
	return a.seen[len(a.seen)-1]
}

// further waits for 200 more arrivals.
func (a *arrivals) further(t *testing.T) {
	t.Helper()
	count := func() int {
		a.mu.Lock()
		defer a.mu.Unlock()
		return len(a.seen)
	}
	before := count()
	supervisortest.Eventually(t, "200 packets arrive", func() error {
		if n := count() - before; n < 200 {
			return fmt.Errorf("%d arrived", n)
		}
		return nil
	})
}

// since returns how many arrivals of a text there are after the first one of another text; -1 without one.
func (a *arrivals) since(text, first string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := -1
	for _, seen := range a.seen {
		if n < 0 && seen == first {
			n = 0
		} else if n >= 0 && seen == text {
			n++
		}
	}
	return n
}

func (a *arrivals) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen = nil
}

// talk sends a packet each two milliseconds on a socket of a namespace, if there is a destination, and calls f for each packet that the socket receives, until the test
// ends.
func talk(t *testing.T, in netns.NsHandle, at, to string, f func()) {
	t.Helper()
	var conn *net.UDPConn
	must.Succeed(t, nodetest.Within(in, func() (err error) {
		conn, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(at))) // not connected: ICMP errors do not end it
		return err
	}))
	done := make(chan struct{})
	t.Cleanup(func() {
		close(done)
		_ = conn.Close()
	})
	go func() {
		for buffer := make([]byte, 100); ; {
			if _, _, err := conn.ReadFromUDPAddrPort(buffer); err == nil {
				f()
			} else if errors.Is(err, net.ErrClosed) {
				return
			}
		}
	}()
	if to == "" {
		return
	}
	destination := netip.MustParseAddrPort(to)
	go func() {
		for pace := time.NewTicker(2 * time.Millisecond); ; {
			select {
			case <-pace.C:
				_, _ = conn.WriteToUDPAddrPort([]byte("x"), destination) // while the address has no owner, it has no neighbour
			case <-done:
				return
			}
		}
	}()
}

// TestAMovedAddressHasNoPacketForItsFormerOwner moves a floating address, a source address and a port between pods with a real OVN, while a client sends UDP without a
// pause. OVN alone does not end the connections, which the test shows first.
func TestAMovedAddressHasNoPacketForItsFormerOwner(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	nodetest.Wire(t)
	c := startCentral(t)
	o := nodeOptions(t, c)
	background(t, func(ctx context.Context) error { return Run(ctx, o) })
	healthy(t, o.HealthAddress)
	pods := map[string]netns.NsHandle{"10.0.0.1": logicalPort(t, o, c, "a", "10.0.0.1/24"), "10.0.0.2": logicalPort(t, o, c, "b", "10.0.0.2/24")}
	outside := logicalPort(t, o, c, "h", "198.51.100.7/24")
	nbctl := func(args ...string) {
		t.Helper()
		command(t, "usr/bin/ovn-nbctl", append([]string{northbound(c), "--wait=hv", "--timeout=120"}, args...)...)
	}
	port := func(name, lswitch, mac, network string) []string {
		return []string{"--", "lrp-add", "r", "r-" + name, mac, network, "--", "lsp-add", lswitch, name + "-r", "--", "lsp-set-type", name + "-r", "router",
			"--", "lsp-set-options", name + "-r", "router-port=r-" + name, "--", "lsp-set-addresses", name + "-r", "router"}
	}
	setUp := []string{"lsp-del", "h", "--", "ls-add", "out", "--", "lsp-add", "out", "h", "--", "lsp-set-addresses", "h", "02:00:00:00:00:07 198.51.100.7", "--", "lr-add", "r"}
	setUp = append(setUp, port("in", "s", "02:00:00:00:00:f0", "10.0.0.254/24")...)
	setUp = append(setUp, port("out", "out", "02:00:00:00:00:f1", "198.51.100.254/24")...)
	nbctl(append(setUp, "--", "lrp-set-gateway-chassis", "r-out", o.Node)...)
	for name, in := range map[string]netns.NsHandle{"a_c": pods["10.0.0.1"], "b_c": pods["10.0.0.2"], "h_c": outside} {
		inside := must.Value(netlink.NewHandleAt(in))
		link := must.Value(inside.LinkByName(name))
		gateway := net.IPv4(10, 0, 0, 254)
		if name == "h_c" {
			gateway = net.IPv4(198, 51, 100, 254)
		}
		must.Succeed(t, inside.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: gateway}))
		must.Succeed(t, nodetest.Within(in, func() error { // Open vSwitch in userspace rejects packets without a checksum
			tool, err := ethtool.NewEthtool()
			if err != nil {
				return err
			}
			defer tool.Close()
			return tool.Change(name, map[string]bool{"tx-checksum-ip-generic": false})
		}))
	}

	var inbound, answers arrivals
	for address, in := range pods {
		talk(t, in, address+":5000", "", func() { inbound.add(address) })
		talk(t, in, address+":7000", "198.51.100.7:6000", func() { answers.add(address) })
	}
	talk(t, outside, "198.51.100.7:4000", "198.51.100.9:5000", func() {})
	talk(t, outside, "198.51.100.7:4001", "198.51.100.11:53", func() {})
	talk(t, outside, "198.51.100.7:6000", "198.51.100.10:7000", func() {}) // answers to the pod that has the source address, which keeps its port

	connections := agentovs.Connections{Directory: o.RunDir}
	for _, kind := range []struct {
		name     string
		former   kubeovnv1.ConnectionFlush // without the pod
		add      func(pod string) []string
		withdraw []string
		at       *arrivals
	}{
		{
			"a port", kubeovnv1.ConnectionFlush{Address: netip.MustParseAddr("198.51.100.11"), Protocol: "udp", Port: 53}, // OVN has its endpoint in a group
			func(pod string) []string {
				return []string{"lb-add", "port", "198.51.100.11:53", pod + ":5000", "udp", "--", "lr-lb-add", "r", "port"}
			},
			[]string{"lb-del", "port"}, &inbound,
		},
		{
			"a source address", kubeovnv1.ConnectionFlush{Address: netip.MustParseAddr("198.51.100.10"), Source: true},
			func(pod string) []string { return []string{"lr-nat-add", "r", "snat", "198.51.100.10", pod} },
			[]string{"lr-nat-del", "r", "snat"}, &answers,
		},
		{
			"a floating address", kubeovnv1.ConnectionFlush{Address: netip.MustParseAddr("198.51.100.9")},
			func(pod string) []string { return []string{"lr-nat-add", "r", "dnat_and_snat", "198.51.100.9", pod} },
			[]string{"lr-nat-del", "r", "dnat_and_snat"}, &inbound,
		},
	} {
		of := func(pod string) []kubeovnv1.ConnectionFlush {
			one := kind.former
			one.ID, one.Internal = "x", netip.MustParsePrefix(pod+"/32")
			return []kubeovnv1.ConnectionFlush{one}
		}
		translates := func(pod string) bool {
			t.Helper()
			left, err := connections.Translated(t.Context(), of(pod))
			must.Succeed(t, err)
			return len(left) > 0
		}
		add := func(pod, other string) {
			t.Helper()
			nbctl(kind.add(pod)...)
			if !translates(pod) || translates(other) {
				t.Errorf("%s of %s: the node has flows for it: %t; for %s: %t", kind.name, pod, translates(pod), other, translates(other))
			}
		}
		end := func(former ...string) {
			t.Helper()
			var all []kubeovnv1.ConnectionFlush
			for _, pod := range former {
				supervisortest.Eventually(t, "the flows of "+pod+" are deleted", func() error {
					if translates(pod) {
						return errors.New("there are some")
					}
					return nil
				})
				all = append(all, of(pod)...)
			}
			if _, err := connections.Flush(t.Context(), all); err != nil {
				t.Fatal(err)
			}
		}
		reaches := func(pod string) {
			t.Helper()
			supervisortest.Eventually(t, kind.name+" belongs to "+pod, func() error {
				if last := kind.at.last(); last != pod {
					return fmt.Errorf("the last packet is of %q", last)
				}
				return nil
			})
		}
		former, next := "10.0.0.1", "10.0.0.2"
		kind.at.forget()
		add(former, next)
		reaches(former)
		nbctl(kind.withdraw...)
		add(next, former)
		kind.at.forget()
		kind.at.further(t)
		if kind.at.last() != former {
			t.Errorf("%s: without a flush the last packet is of %q: the test shows nothing", kind.name, kind.at.last())
		}
		nbctl(kind.withdraw...)
		end(former, next) // a connection of the next pod would keep another port than that of the answers
		add(former, next)
		for range 2 { // to the next pod and back
			kind.at.forget()
			lazily := append([]string{northbound(c), "--timeout=120"}, kind.withdraw...) // does not wait for flows, as the engine
			command(t, "usr/bin/ovn-nbctl", lazily...)
			end(former)
			add(next, former)
			reaches(next)
			kind.at.further(t)
			if n := kind.at.since(former, next); n != 0 {
				t.Errorf("%s: %d packets of %s after the first one of %s", kind.name, n, former, next)
			}
			former, next = next, former
		}
		nbctl(kind.withdraw...) // the connections stay: those of a floating address, the last one, would keep the answers of the others
	}
}
