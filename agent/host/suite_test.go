// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/agent/agenttest"
	"github.com/kiln-net/kiln/agent/host"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
)

// slow are tests whose waits take long for a known reason.
var slow = eventually.Allowed{
	"TestGatewayRenewsItsLease":       {Why: agenttest.DatabaseLoss, Base: 12 * time.Second},
	"TestNodesOfAVpcRenewTheirLeases": {Why: agenttest.DatabaseLoss, Base: 12 * time.Second},
	"TestNodeRoutesAndRestores":       {Why: agenttest.DatabaseLoss, Base: 12 * time.Second},
}

func TestMain(m *testing.M) { agenttest.Main(m, slow) }

func ruleset(t *testing.T) string {
	t.Helper()
	out, _ := nodetest.TryNFT("list table inet " + host.NATTable) // it does not exist for a moment
	return out
}

// claimed returns the single addresses (/32 and /128) of an interface.
func claimed(name string) string {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err.Error()
	}
	list, err := netlinksafe.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return err.Error()
	}
	var out []string
	for _, a := range list {
		if ones, bits := a.Mask.Size(); ones == bits {
			out = append(out, a.IP.String())
		}
	}
	return strings.Join(out, " ")
}

// ownState returns the agent's routing rules, and its routes in tables other than main.
func ownState() string {
	out, _ := exec.Command("sh", "-c",
		"for f in -4 -6; do ip $f rule show | grep 'proto 75'; ip $f route show table all proto 75 | grep table; done").CombinedOutput()
	return string(out)
}

// seen waits until connections to address have the source address want at the receiver.
func seen(n *agenttest.Node, from, to ns.NetNS, address, want netip.Addr) {
	n.Helper()
	n.Eventually(fmt.Sprintf("%s sees %s", address, want), func() bool { return agenttest.Exchange(n.TB, from, to, address, "hello") == want })
}

// losesItsTranslation checks that a connection which this gateway does not know, as after a failover, is reset at once.
func losesItsTranslation(n *agenttest.Node, from, to ns.NetNS, address netip.Addr) {
	n.Helper()
	var listener net.Listener
	must.Succeed(n.TB, to.Do(func(ns.NetNS) (err error) {
		listener, err = net.Listen("tcp", net.JoinHostPort(address.String(), "0"))
		return err
	}))
	defer listener.Close()
	home, err := ns.GetCurrentNS()
	must.Succeed(n.TB, err)
	defer home.Close()
	must.Succeed(n.TB, from.Do(func(ns.NetNS) error {
		connection, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			return err
		}
		defer connection.Close()
		must.Succeed(n.TB, home.Do(func(ns.NetNS) error { return forgetConnections() }))
		must.Succeed(n.TB, connection.SetDeadline(time.Now().Add(agenttest.Patience)))
		_, err = connection.Write([]byte("still there?")) // the handshake's last packet may have caused the reset already
		if err == nil {
			_, err = connection.Read(make([]byte, 1))
		}
		if !errors.Is(err, syscall.ECONNRESET) {
			n.Errorf("a connection to %s that lost its translation: %v", address, err)
		}
		return nil
	}))
}

// forgetConnections flushes the conntrack table of the current namespace.
func forgetConnections() error {
	for _, family := range []netlink.InetFamily{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		if _, err := netlinksafe.ConntrackDeleteFilters(netlink.ConntrackTable, family, everything{}); err != nil {
			return err
		}
	}
	return nil
}

// everything matches every connection (netlink.CustomConntrackFilter).
type everything struct{}

func (everything) MatchConntrackFlow(*netlink.ConntrackFlow) bool { return true }
