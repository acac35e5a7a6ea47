// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"slices"
	"strconv"
	"testing"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/supervisor/jsonrpc"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

// The lock of an ovn-northd on a failed node lasts until its connection ends.
func TestNorthdIsMissedBeforeOthers(t *testing.T) {
	remotes := Options{Database: Southbound}.configure("sb.db", false).Remotes
	probes := map[int]int{}
	for _, l := range Southbound.Clients {
		probes[l.Port] = remotes[passive(l.Port, Options{}.Listen)].InactivityProbe
	}
	if probes[6642] != clientProbe || probes[6645] != northdProbe || probes[6649] != northdProbe {
		t.Errorf("the server asks clients after %v ms", probes)
	}
}

// While an upgrade replaces the pods of nodes, the guard of the member's node may not protect the added port yet.
func TestAddedPortsOpenWhenNodesAreUpgraded(t *testing.T) {
	tr := newTrial(t)
	m := tr.add("cp-1", "127.0.3.23")
	ports := func(want ...int) error {
		var open []int
		for _, l := range Southbound.Clients {
			if conn, err := net.Dial("tcp", m.at(l.Port)); err == nil {
				open = append(open, l.Port)
				_ = conn.Close()
			}
		}
		if !slices.Equal(open, want) {
			return fmt.Errorf("open are %v, want %v", open, want)
		}
		return nil
	}
	status := v1alpha1.OVNClusterStatus{Southbound: v1alpha1.DatabaseStatus{BootstrapNode: "cp-1"}}
	status.Upgrade.Stage = v1alpha1.StageNodes
	tr.startWith(m, status)
	tr.untilConnected(m, 1)
	tr.must(ports(6642, 6645))
	client := tr.client(m, 6645)
	tr.must(client.Call("list_dbs", []any{}, new([]string)))

	status.Upgrade.Stage = v1alpha1.StageDatabases
	m.clusters <- &v1alpha1.OVNCluster{Status: *status.DeepCopy()}
	supervisortest.Eventually(t, "the member serves the added port", func() error { return ports(6642, 6645, 6649) })
	tr.must(client.Call("list_dbs", []any{}, new([]string)))
	tr.must(tr.client(m, 6649).Call("list_dbs", []any{}, new([]string)))

	status.Upgrade.Stage = v1alpha1.StageNodes // a later change of the nodes' pods
	m.clusters <- &v1alpha1.OVNCluster{Status: *status.DeepCopy()}
	supervisortest.Eventually(t, "the member receives the status", m.heard)
	tr.must(client.Call("list_dbs", []any{}, new([]string)))
	tr.must(ports(6642, 6645, 6649))
}

// at returns the address of a port of the member.
func (m *trialMember) at(port int) string {
	return net.JoinHostPort(m.options.Address.String(), strconv.Itoa(port))
}

// client connects to a port of a member as a server does, which all ports accept.
func (tr *trial) client(m *trialMember, port int) *jsonrpc.Conn {
	tr.t.Helper()
	certificate, key := tr.servers.Issue(tr.t, "client")
	pair, err := tls.X509KeyPair(certificate, key)
	tr.must(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(tr.servers.PEM)
	conn, err := jsonrpc.DialTLS(tr.t.Context(), m.at(port), &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, RootCAs: roots, ServerName: "ovn-sb",
	})
	tr.must(err)
	tr.t.Cleanup(conn.Close)
	return conn
}
