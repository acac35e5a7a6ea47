// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
	"github.com/kiln-net/kiln/supervisor/adminapi"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
	"github.com/kiln-net/kiln/supervisor/unixctl"
)

// TestANodeWithTheAddressOfADeletedNode has a chassis of a deleted node with the address of the node. No two chassis may have the same
// encapsulation, and none may change another one, so the node registers once the operator has removed the other chassis. Then tunnels follow
// the addresses of both ends.
func TestANodeWithTheAddressOfADeletedNode(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	nodetest.Wire(t)
	c := startCentral(t)
	southbound := func(args ...string) {
		command(t, "usr/bin/ovn-sbctl", append([]string{"--db=unix:" + c.southbound}, args...)...)
	}
	southbound("chassis-add", "node-0", "geneve", "192.0.2.1")
	o := nodeOptions(t, c)
	background(t, func(ctx context.Context) error { return Run(ctx, o) })
	healthy(t, o.HealthAddress)
	supervisortest.Eventually(t, "the southbound database refuses the node's chassis", func() error {
		count, err := unixctl.Call(t.Context(), control(t, o.OVNRunDir, "ovn-controller"), "coverage/read-counter", "txn_error")
		if err == nil && count == "0" {
			err = errors.New("no transaction has failed")
		}
		return err
	})
	if err := checkChassis(t, c.southbound); err == nil {
		t.Fatal("the node has registered: this test proves nothing")
	}
	admin := c.admin(t)
	if names := must.Value(admin.Chassis(t.Context())); !slices.Equal(names, []string{"node-0"}) {
		t.Fatalf("chassis %q", names)
	}
	must.Succeed(t, admin.RemoveChassis(t.Context(), []string{"node-0"}))
	supervisortest.Eventually(t, "the node registers", func() error { return checkChassis(t, c.southbound) })

	southbound("chassis-add", "node-2", "geneve", "192.0.2.2")
	tunnelTo := func(address string) func() error {
		return func() error {
			argv := append(supervisortest.Program(t, "usr/bin/ovs-vsctl"), "--db=unix:"+o.socket(), "--bare", "--columns=options", "find", "Interface", "type=geneve")
			out, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).CombinedOutput()
			if err == nil && !strings.Contains(string(out), "remote_ip="+address) {
				err = fmt.Errorf("tunnels: %s", out)
			}
			return err
		}
	}
	supervisortest.Eventually(t, "a tunnel leads to the other node", tunnelTo("192.0.2.2"))
	southbound("set", "Encap", must.Value(uuidIn(t, c.southbound, "Encap", "ip", "192.0.2.2")), "ip=192.0.2.22")
	supervisortest.Eventually(t, "the tunnel follows the other node", tunnelTo("192.0.2.22"))

	command(t, "usr/bin/ovs-vsctl", "--db=unix:"+o.socket(), "--timeout=120", "set", "Open_vSwitch", ".", "external_ids:ovn-encap-ip=192.0.2.7")
	supervisortest.Eventually(t, "the chassis has the new address", func() error {
		_, err := uuidIn(t, c.southbound, "Encap", "ip", "192.0.2.7")
		return err
	})
}

// admin returns a client of the southbound member's administrative endpoint.
func (c central) admin(t *testing.T) *adminapi.Client {
	t.Helper()
	return c.clientOf(t, "operator", adminapi.PortSouthbound)
}

// clientOf returns a client of an endpoint whose certificate has the caller's name.
func (c central) clientOf(t *testing.T, caller string, port uint16) *adminapi.Client {
	t.Helper()
	certificate, key := c.servers.Issue(t, caller)
	pair := must.Value(tls.X509KeyPair(certificate, key))
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.servers.PEM)
	client := adminapi.NewClient(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port), &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, RootCAs: roots, ServerName: "server",
	})
	t.Cleanup(client.Close)
	return client
}
