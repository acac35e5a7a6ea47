// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/ovn-kubernetes/libovsdb/ovsdb/serverdb"
)

const (
	northboundDB = "OVN_Northbound"
	serverDB     = "_Server"
	noTxn        = "00000000-0000-0000-0000-000000000000"
)

// errNoReply reports that a connection or a context ended before the reply arrived.
var errNoReply = errors.New("no reply")

// run keeps the session connected until ctx ends.
func (s *Session) run(ctx context.Context) {
	defer close(s.over)
	wait := reconnectBackoff()
	m := &monitors{session: s, lastTxn: noTxn}
	for ctx.Err() == nil {
		endpoints, changed := s.link.candidates()
		conn, endpoint := s.findLeader(ctx, m, endpoints, changed)
		if conn == nil {
			continue
		}
		if err := m.begin(ctx, conn); err != nil {
			s.failed(endpoint, err)
			pause(ctx, wait.NextBackOff(), changed)
			continue
		}
		s.link.up(conn, endpoint)
		s.options.Log.Info("Connected to the northbound database", "endpoint", endpoint)
		select {
		case <-conn.done:
		case <-ctx.Done():
			conn.close()
			<-conn.done
		}
		s.link.down()
		s.options.Log.Info("Disconnected from the northbound database", "reason", conn.err.Error())
		if conn.useful.Load() {
			wait.Reset()
		} else { // the server accepts connections and closes them at once
			pause(ctx, wait.NextBackOff(), changed)
		}
	}
}

// pause waits until d has passed, the endpoints change, or ctx ends.
func pause(ctx context.Context, d time.Duration, changed <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-changed:
	case <-ctx.Done():
	}
}

// findLeader queries the leadership of all endpoints concurrently, each again after a back-off, and returns a connection to the
// first that leads. It returns nil when the endpoints change or ctx ends. A server that does not reply delays neither the
// connection to another server that leads, nor the next query of one that lost an election or has not won it yet.
func (s *Session) findLeader(ctx context.Context, m *monitors, endpoints []string, changed <-chan struct{}) (*conn, string) {
	if len(endpoints) == 0 {
		s.failed("", errors.New("no endpoint is known"))
	}
	asking, cancel := context.WithCancel(ctx)
	defer cancel()
	found := make(chan answer)
	for _, endpoint := range endpoints {
		go s.query(asking, m, endpoint, found)
	}
	select {
	case a := <-found:
		return a.conn, a.endpoint
	case <-changed:
	case <-ctx.Done():
	}
	return nil, ""
}

// answer is a connection to a server that leads.
type answer struct {
	endpoint string
	conn     *conn
}

// query retries a server until it leads or ctx ends.
func (s *Session) query(ctx context.Context, m *monitors, endpoint string, found chan<- answer) {
	for wait := reconnectBackoff(); ctx.Err() == nil; pause(ctx, wait.NextBackOff(), nil) {
		limited, cancel := context.WithTimeout(ctx, cmp.Or(s.options.leaderTimeout, leaderTimeout))
		c, err := m.ask(limited, endpoint)
		cancel()
		if err == nil {
			select {
			case found <- answer{endpoint: endpoint, conn: c}:
			case <-ctx.Done():
				c.close()
			}
			return
		}
		if ctx.Err() == nil {
			s.failed(endpoint, err)
		}
	}
}

// failed records the reason why an endpoint has no connection.
func (s *Session) failed(endpoint string, err error) {
	s.link.failed(endpoint, err)
	s.options.Log.V(1).Info("Cannot connect to the northbound database", "endpoint", endpoint, "reason", err.Error())
}

func (s *Session) dial(ctx context.Context, endpoint string) (net.Conn, error) {
	scheme, address, _ := strings.Cut(endpoint, ":")
	var dialer net.Dialer
	switch scheme {
	case "unix", "tcp":
		return dialer.DialContext(ctx, scheme, address)
	case "ssl":
		return (&tls.Dialer{NetDialer: &dialer, Config: s.options.TLS}).DialContext(ctx, "tcp", address)
	default:
		return nil, fmt.Errorf("endpoint is not ssl:, tcp: or unix: as in ovsdb(7)")
	}
}

// roundTrip sends a request and waits until its reply has been handled. The reading goroutine calls take with the result.
func roundTrip(ctx context.Context, c *conn, method string, params []any, take func(json.RawMessage) error) error {
	done := make(chan error, 1)
	err := c.call(method, params, func(result json.RawMessage, err error) {
		if err == nil {
			err = take(result)
		}
		done <- err
	})
	if err != nil {
		return err
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w to %s: %w", errNoReply, method, ctx.Err())
	}
}

// monitors are the two monitors of a connection: the leadership of its server, and the northbound database.
type monitors struct {
	session *Session
	lastTxn string // the last transaction in the replica; only one connection at a time monitors the database
}

// ask connects to a server, monitors its leadership, and returns the connection if the server leads.
func (m *monitors) ask(ctx context.Context, endpoint string) (*conn, error) {
	raw, err := m.session.dial(ctx, endpoint)
	if err != nil {
		return nil, err
	}
	c := newConn(raw, m.notify)
	leadership := map[string]any{"Database": []any{map[string]any{
		"columns": []string{"name", "model", "leader", "connected"},
		"where":   []any{[]any{"name", "==", northboundDB}},
	}}}
	if err := roundTrip(ctx, c, "monitor_cond", []any{serverDB, serverDB, leadership}, checkLeader); err != nil {
		c.close()
		return nil, fmt.Errorf("monitor leadership: %w", err)
	}
	return c, nil
}

// begin monitors the northbound database, starting after the last transaction in the replica.
func (m *monitors) begin(ctx context.Context, c *conn) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	requests := map[string]any{}
	for table := range northboundSchema().Tables {
		requests[table] = []any{map[string]any{"columns": northboundColumns(table)}}
	}
	params := []any{northboundDB, northboundDB, requests, m.lastTxn}
	if err := roundTrip(ctx, c, "monitor_cond_since", params, m.populate); err != nil {
		c.close()
		<-c.done
		m.lastTxn = noTxn
		return fmt.Errorf("monitor %s: %w", northboundDB, err)
	}
	return nil
}

// populate handles the reply [found, last-txn-id, updates] (ovsdb-server(7), monitor_cond_since).
func (m *monitors) populate(raw json.RawMessage) error {
	r := &reader{in: raw}
	r.expect('[')
	found := r.boolean()
	r.expect(',')
	txn := string(r.string())
	r.expect(',')
	updates := r.updates()
	if r.expect(']'); r.err != nil {
		return fmt.Errorf("decode: %w", r.err)
	}
	if err := m.session.populate(updates, !found); err != nil {
		return err
	}
	m.lastTxn = txn
	return nil
}

// notify handles update3 [id, last-txn-id, updates] of the northbound database and update2 [id, updates] of _Server. An error
// ends the connection. If an update cannot be applied, the next connection reads the whole database again.
func (m *monitors) notify(method string, params []json.RawMessage) error {
	switch {
	case method == "update3" && len(params) == 3:
		return m.northbound(params[1], params[2])
	case method == "update2" && len(params) == 2:
		return checkLeader(params[1])
	default:
		return nil
	}
}

func (m *monitors) northbound(rawTxn, rawUpdates json.RawMessage) error {
	m.lastTxn = noTxn // an update that was applied must not be applied again: after an error, the whole database is read
	var txn string
	if err := json.Unmarshal(rawTxn, &txn); err != nil {
		return fmt.Errorf("decode update: %w", err)
	}
	updates, err := readUpdates(rawUpdates)
	if err != nil {
		return fmt.Errorf("decode update: %w", err)
	}
	m.session.mu.Lock()
	defer m.session.mu.Unlock()
	if err := m.session.update(updates); err != nil {
		return err
	}
	m.lastTxn = cmp.Or(txn, noTxn)
	return nil
}

// checkLeader returns an error for a cluster member that does not lead or has lost its quorum. A standalone server always
// leads. In a row that is new to the monitor, columns with their default values are missing (ovsdb-server(7), update2
// notification), and false is a default.
func checkLeader(raw json.RawMessage) error {
	updates, err := readUpdates(raw)
	if err != nil {
		return fmt.Errorf("decode leadership: %w", err)
	}
	for _, row := range updates["Database"] {
		columns, err := row.columns()
		if err != nil {
			return fmt.Errorf("decode leadership: %w", err)
		}
		if columns["model"] == serverdb.DatabaseModelStandalone {
			return nil
		}
		for _, column := range []string{"leader", "connected"} {
			if value, given := columns[column]; value == false || !given && row.insert != nil {
				return errors.New("the server does not lead the cluster")
			}
		}
	}
	return nil
}
