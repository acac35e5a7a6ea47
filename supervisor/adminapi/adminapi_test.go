// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package adminapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

// member is a fake Database that records the calls.
type member struct{ asked []string }

var someStatus = Status{
	ClusterID: "c", ServerID: "s", Address: "ssl:[2001:db8::1]:6643", Role: RoleLeader, Term: 7, Leader: "ab12",
	LeaderAddress: "ssl:[2001:db8::1]:6643", Connected: true, Members: []Member{{ServerID: "ab12", Address: "ssl:[2001:db8::1]:6643"}},
}

func (m *member) Status(context.Context) (Status, error) { return someStatus, nil }
func (m *member) Kick(_ context.Context, server string) error {
	m.asked = append(m.asked, "kick "+server)
	return nil
}
func (m *member) Schemas(context.Context) (Schemas, error) {
	return Schemas{Database: "1.0.0", Image: "2.0.0"}, nil
}
func (m *member) BeyondVXLAN(context.Context) (BeyondVXLAN, error) {
	return BeyondVXLAN{Datapaths: 3, Ports: 5}, nil
}
func (m *member) Convert(context.Context) error             { m.asked = append(m.asked, "convert"); return nil }
func (m *member) Chassis(context.Context) ([]string, error) { return []string{"node-1"}, nil }
func (m *member) RemoveChassis(_ context.Context, names []string) error {
	m.asked = append(m.asked, "remove "+strings.Join(names, " "))
	return nil
}
func (m *member) Leave(context.Context) error { m.asked = append(m.asked, "leave"); return nil }
func (m *member) Compact(context.Context) error {
	return errors.New("cannot store a snapshot while leaving cluster")
}

// figures serves metrics.
var figures = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "figure 1") })

// endpoints counts the endpoints so far: each one listens on a different address.
var endpoints byte

// endpoint serves a member. It returns the address, the directory of its TLS files, a function that makes clients' TLS
// configurations, and the callers' CA.
func endpoint(t *testing.T, db Database) (address netip.AddrPort, dir string, config func(callers supervisortest.Authority, serverName string) *tls.Config, callers supervisortest.Authority) {
	t.Helper()
	servers, callers := supervisortest.NewAuthority(t, "servers"), supervisortest.NewAuthority(t, "admin")
	dir = servers.TLSDir(t, "ovn-nb", map[string][]byte{"admin-ca.crt": callers.PEM})
	endpoints++
	address = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 8, endpoints}), 6651) // outside the ephemeral port range
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, address.String(), dir, Handler(db, figures)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(servers.PEM)
	config = func(a supervisortest.Authority, serverName string) *tls.Config {
		return configOf(t, a, "operator", roots, serverName)
	}
	return address, dir, config, callers
}

// configOf returns the configuration of a client whose certificate has a name.
func configOf(t *testing.T, a supervisortest.Authority, name string, roots *x509.CertPool, serverName string) *tls.Config {
	t.Helper()
	certificate, key := a.Issue(t, name)
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, RootCAs: roots, ServerName: serverName}
}

// untilUp retries until the listener accepts connections.
func untilUp(t *testing.T, c *Client) (Status, error) {
	t.Helper()
	for {
		status, err := c.Status(t.Context())
		if refused := new(net.OpError); errors.As(err, &refused) && refused.Op == "dial" {
			continue
		}
		return status, err
	}
}

func TestEndpoint(t *testing.T) {
	m := &member{}
	address, _, config, callers := endpoint(t, m)
	c := NewClient(address, config(callers, "ovn-nb"))
	defer c.Close()

	status, err := untilUp(t, c)
	want := someStatus
	if diff := cmp.Diff(want, status); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	if err := errors.Join(c.Kick(t.Context(), "ssl:[2001:db8::2]:6643"), c.Leave(t.Context())); err != nil {
		t.Error(err)
	}
	if _, err := c.do(t.Context(), http.MethodPost, "/later", nil); !errors.Is(err, ErrUnsupported) {
		t.Errorf("an unknown request: %v", err)
	}
	if err := c.Convert(t.Context()); err != nil {
		t.Error(err)
	}
	if got, err := c.BeyondVXLAN(t.Context()); err != nil || got != (BeyondVXLAN{Datapaths: 3, Ports: 5}) {
		t.Errorf("beyond VXLAN: %+v, %v", got, err)
	}
	if got, err := c.Schemas(t.Context()); err != nil || got != (Schemas{Database: "1.0.0", Image: "2.0.0"}) {
		t.Errorf("schemas %+v, %v", got, err)
	}
	if got, err := c.Chassis(t.Context()); err != nil || !slices.Equal(got, []string{"node-1"}) {
		t.Errorf("chassis %q, %v", got, err)
	}
	if err := c.RemoveChassis(t.Context(), []string{"node-2", "a&b"}); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"kick ssl:[2001:db8::2]:6643", "leave", "convert", "remove node-2 a&b"}, m.asked); diff != "" {
		t.Error(diff)
	}
	if err := c.Kick(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "server is missing") {
		t.Errorf("kick without a member: %v", err)
	}
	if err := c.Compact(t.Context()); err == nil || !strings.Contains(err.Error(), "cannot store a snapshot") {
		t.Errorf("the member's message is lost: %v", err)
	}
}

func TestEndpointTrustsItsCallersOnly(t *testing.T) {
	address, dir, config, callers := endpoint(t, &member{})
	strangers := supervisortest.NewAuthority(t, "strangers")
	if _, err := untilUp(t, NewClient(address, config(strangers, "ovn-nb"))); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a caller of another authority: %v", err)
	}
	if _, err := untilUp(t, NewClient(address, config(callers, "ovn-sb"))); err == nil || !strings.Contains(err.Error(), "ovn-sb") {
		t.Errorf("a server of another name: %v", err)
	}

	// A rotated CA applies from the next connection on.
	if err := os.WriteFile(filepath.Join(dir, "admin-ca.crt"), strangers.PEM, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := untilUp(t, NewClient(address, config(strangers, "ovn-nb"))); err != nil {
		t.Errorf("a caller of the new authority: %v", err)
	}
	if _, err := untilUp(t, NewClient(address, config(callers, "ovn-nb"))); err == nil {
		t.Error("a caller of the old authority is still taken")
	}
}

func TestTheMonitorReadsMetricsOnly(t *testing.T) {
	m := &member{}
	address, _, config, callers := endpoint(t, m)
	operator := config(callers, "ovn-nb")
	c := NewClient(address, operator)
	if _, err := untilUp(t, c); err != nil {
		t.Fatal(err)
	}
	monitor := NewClient(address, configOf(t, callers, MonitorName, operator.RootCAs, "ovn-nb"))
	defer monitor.Close()
	for name, client := range map[string]*Client{"monitor": monitor, "operator": c} {
		response, err := client.Metrics(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(response); string(text) != "figure 1\n" || err != nil {
			t.Errorf("metrics for the %s: %q, %v", name, text, err)
		}
		if err := response.Close(); err != nil {
			t.Error(err)
		}
	}
	_, statusErr := monitor.Status(t.Context())
	for what, err := range map[string]error{
		"status": statusErr, "kick": monitor.Kick(t.Context(), "x"), "leave": monitor.Leave(t.Context()), "convert": monitor.Convert(t.Context()),
	} {
		if err == nil || !strings.Contains(err.Error(), "may read metrics only") {
			t.Errorf("%s by the monitor: %v", what, err)
		}
	}
	if len(m.asked) > 0 {
		t.Errorf("the monitor has done %q", m.asked)
	}
}
