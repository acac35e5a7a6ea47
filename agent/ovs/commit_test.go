// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
	dto "github.com/prometheus/client_model/go"

	"github.com/kiln-net/kiln/internal/ovsdb/client"
	"github.com/kiln-net/kiln/internal/ovsdb/vswitch"
	"github.com/kiln-net/kiln/internal/testing/daemontest"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

// newBridge returns br-int in a new database. There is no ovs-vswitchd.
func newBridge(t *testing.T) *Bridge {
	t.Helper()
	return newBridgeBehind(t, func(socket string) string { return socket })
}

// newBridgeBehind is like newBridge, but connects through the socket that the function returns for the database's socket.
func newBridgeBehind(t *testing.T, by func(socket string) string) *Bridge {
	t.Helper()
	dir, err := os.MkdirTemp("", "ovs") // t.TempDir is too long for a socket
	must.Succeed(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	file, socket := filepath.Join(dir, "conf.db"), filepath.Join(dir, "s")
	supervisortest.CreateSwitchDatabase(t, file)
	serve := append(supervisortest.Program(t, "usr/sbin/ovsdb-server"), file, "--remote=punix:"+socket, "--no-chdir", "--unixctl="+filepath.Join(dir, "ctl"))
	daemontest.Start(t, "ovsdb-server", filepath.Join(dir, "ovsdb-server.log"), exec.Command(serve[0], serve[1:]...))
	eventually.Wait{For: "ovsdb-server listens"}.Succeeds(t, func() error {
		connection, err := net.Dial("unix", socket)
		if err != nil {
			return err
		}
		return connection.Close()
	})
	c, err := client.VSwitch(t.Context(), client.Options{Endpoints: []string{"unix:" + by(socket)}, Log: logr.Discard()})
	must.Succeed(t, err)
	t.Cleanup(c.Close)
	b := New(c)
	// A port whose interface has another name. Since names of ports are unique, ovsdb-server refuses a pod's port of that name.
	b.write(t, &vswitch.Interface{UUID: "bond1", Name: "bond1"}, &vswitch.Port{UUID: "bond", Name: "taken", Interfaces: []string{"bond1"}},
		&vswitch.Bridge{UUID: "bridge", Name: IntegrationBridge, Ports: []string{"bond"}}, &vswitch.OpenvSwitch{Bridges: []string{"bridge"}})
	return b
}

func (b *Bridge) write(t *testing.T, rows ...any) {
	t.Helper()
	var operations []ovsdb.Operation
	for _, row := range rows {
		more, err := b.client.Create(row)
		must.Succeed(t, err)
		operations = append(operations, more...)
	}
	results, err := b.client.Transact(t.Context(), operations...)
	must.Succeed(t, err)
	_, err = ovsdb.CheckOperationResults(results, operations)
	must.Succeed(t, err)
}

// together sends requests while another transaction seems to be in flight. It returns the outcome of each request and the number of
// transactions that they needed.
func (b *Bridge) together(t *testing.T, requests ...func(context.Context) error) ([]error, int) {
	t.Helper()
	b.requests.running = true
	outcomes := make([]chan error, len(requests))
	for i, request := range requests {
		outcomes[i] = make(chan error, 1)
		go func() { outcomes[i] <- request(t.Context()) }()
		for waiting := 0; waiting <= i; runtime.Gosched() {
			b.requests.mu.Lock()
			waiting = len(b.requests.waiting)
			b.requests.mu.Unlock()
		}
	}
	before := sentSoFar(t)
	b.work()
	errs := make([]error, len(requests))
	for i, outcome := range outcomes {
		errs[i] = <-outcome
	}
	return errs, sentSoFar(t) - before
}

func sentSoFar(t *testing.T) int {
	t.Helper()
	var metric dto.Metric
	must.Succeed(t, transactions.Write(&metric))
	return int(metric.GetCounter().GetValue())
}

func (b *Bridge) attaching(name, logicalPort string) func(context.Context) error {
	return func(ctx context.Context) error {
		return b.Attach(ctx, Attachment{Name: name, LogicalPort: logicalPort, ContainerID: "container of " + name, IfName: "eth0"})
	}
}

func (b *Bridge) detaching(name string) func(context.Context) error {
	return func(ctx context.Context) error { return b.Detach(ctx, name) }
}

// names returns the names of the pods' ports.
func (b *Bridge) names(t *testing.T) map[string]bool {
	t.Helper()
	attachments, err := b.Attachments(t.Context())
	must.Succeed(t, err)
	names := map[string]bool{}
	for _, a := range attachments {
		names[a.Name] = true
	}
	return names
}

func TestRequestsThatComeTogetherShareATransaction(t *testing.T) {
	b := newBridge(t)
	var requests []func(context.Context) error
	for i := range 20 {
		requests = append(requests, b.attaching(fmt.Sprintf("p%d", i), fmt.Sprintf("lsp%d", i)))
	}
	errs, sent := b.together(t, requests...)
	for i, err := range errs {
		if err != nil {
			t.Errorf("port %d: %v", i, err)
		}
	}
	if names := b.names(t); len(names) != 20 || sent != 1 {
		t.Errorf("%d transactions made ports %v", sent, names)
	}
	_, sent = b.together(t, append([]func(context.Context) error{b.attaching("p20", "lsp20"), b.detaching("p0"), b.detaching("nobody")}, requests[1:]...)...)
	if names := b.names(t); len(names) != 20 || names["p0"] || !names["p20"] || sent != 1 {
		t.Errorf("%d transactions made ports %v", sent, names)
	}
	if _, sent = b.together(t, requests[1:]...); sent != 0 {
		t.Errorf("%d transactions for an unchanged state", sent)
	}
}

func TestAPortThatIsRefusedFailsAlone(t *testing.T) {
	b := newBridge(t)
	var requests []func(context.Context) error
	for i := range 8 {
		requests = append(requests, b.attaching(fmt.Sprintf("p%d", i), fmt.Sprintf("lsp%d", i)))
	}
	requests[5] = b.attaching("taken", "lsp5")
	errs, sent := b.together(t, requests...)
	for i, err := range errs {
		if (err != nil) != (i == 5) {
			t.Errorf("port %d: %v", i, err)
		}
	}
	if errs[5] == nil || !strings.Contains(errs[5].Error(), "refused") {
		t.Errorf("the port that is not possible: %v", errs[5])
	}
	if names := b.names(t); len(names) != 7 || sent != 7 { // 8, 4+4, 2+2, 1+1
		t.Errorf("%d transactions made ports %v", sent, names)
	}
}

// If a request makes the server close the connection, the other requests of the transaction still succeed.
func TestAPortThatEndsTheConnectionFailsAlone(t *testing.T) {
	b := newBridgeBehind(t, func(socket string) string {
		return passing(t, socket, func(request []byte) bool { return bytes.Contains(request, []byte("poison")) }, never)
	})
	var requests []func(context.Context) error
	for i := range 8 {
		requests = append(requests, b.attaching(fmt.Sprintf("p%d", i), fmt.Sprintf("lsp%d", i)))
	}
	requests[5] = b.attaching("p5", "poison")
	errs, sent := b.together(t, requests...)
	for i, err := range errs {
		if (err != nil) != (i == 5) {
			t.Errorf("port %d: %v", i, err)
		}
	}
	if !errors.Is(errs[5], ErrDisconnected) || !errors.Is(errs[5], errNoAnswer) {
		t.Errorf("the port that ends the connection: %v", errs[5])
	}
	if names := b.names(t); len(names) != 7 || sent != 8 { // 8 twice, 4+4, 2+2, 1+1
		t.Errorf("%d transactions made ports %v", sent, names)
	}
	if errs, _ := b.together(t, b.attaching("later", "lsp-later")); errs[0] != nil {
		t.Errorf("afterwards: %v", errs[0])
	}
}

// A transaction whose response is lost was committed. Its requests succeed, and nothing is written twice.
func TestALostAnswerFailsNoRequest(t *testing.T) {
	lose := make(chan struct{}, 1)
	b := newBridgeBehind(t, func(socket string) string { return passing(t, socket, never, losing(lose)) })
	var requests []func(context.Context) error
	for i := range 8 {
		requests = append(requests, b.attaching(fmt.Sprintf("p%d", i), fmt.Sprintf("lsp%d", i)))
	}
	lose <- struct{}{}
	errs, sent := b.together(t, requests...)
	for i, err := range errs {
		if err != nil {
			t.Errorf("port %d: %v", i, err)
		}
	}
	if len(lose) != 0 {
		t.Error("no answer was lost")
	}
	if names := b.names(t); len(names) != 8 || sent != 1 {
		t.Errorf("%d transactions made ports %v", sent, names)
	}
}

func never([]byte) bool { return false }

// losing returns true for the first message after each element of the channel.
func losing(lose <-chan struct{}) func([]byte) bool {
	return func([]byte) bool {
		select {
		case <-lose:
			return true
		default:
			return false
		}
	}
}

// passing returns a socket that forwards to another one. It closes a connection instead of forwarding a request, or a response, for which
// a function returns true.
func passing(t *testing.T, socket string, cutRequest, cutAnswer func([]byte) bool) string {
	t.Helper()
	listener, err := net.Listen("unix", socket+".passing")
	must.Succeed(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	pass := func(to, from net.Conn, cut func([]byte) bool) {
		defer func() { _ = errors.Join(to.Close(), from.Close()) }()
		buffer := make([]byte, 1<<20)
		for {
			n, err := from.Read(buffer)
			if err != nil || cut(buffer[:n]) {
				return
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
	}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("unix", socket)
			if err != nil {
				_ = client.Close()
				continue
			}
			go pass(server, client, cutRequest)
			go pass(client, server, cutAnswer)
		}
	}()
	return socket + ".passing"
}

func TestARequestWithoutAWaiterIsNotCommitted(t *testing.T) {
	b := newBridge(t)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	errs, _ := b.together(t, func(context.Context) error { return b.attaching("p0", "lsp0")(gone) }, b.attaching("p1", "lsp1"))
	if errs[0] == nil || errs[1] != nil {
		t.Errorf("got %v", errs)
	}
	if names := b.names(t); len(names) != 1 || !names["p1"] {
		t.Errorf("ports %v", names)
	}
}
