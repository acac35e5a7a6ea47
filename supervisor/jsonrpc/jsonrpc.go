// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package jsonrpc is a JSON-RPC 1.0 client for the control sockets of Open vSwitch's daemons (ovs-appctl(8)) and for
// ovsdb-server's listeners (RFC 7047, section 4), over Unix domain sockets or TLS.
package jsonrpc

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"time"
)

// Error is an error response of the server.
type Error struct {
	// Text is the server's message: a string from a control socket, JSON from a database.
	Text string
}

func (e *Error) Error() string { return e.Text }

// Notification is a message of the server that is not a response, such as `update` of a monitor.
type Notification struct {
	Method string
	Params json.RawMessage
}

// Conn is one connection. It is not safe for concurrent use.
type Conn struct {
	conn    net.Conn
	forget  func() bool
	decoder *json.Decoder
	lastID  int64
	pending []Notification
}

type request struct {
	ID     any    `json:"id"`
	Method string `json:"method"`
	Params any    `json:"params"`
}

type reply struct {
	ID     any             `json:"id"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
}

type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
}

// Dial connects to a Unix socket. When ctx ends, the connection is closed and blocked calls return.
func Dial(ctx context.Context, socket string) (*Conn, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err // already names the socket
	}
	return newConn(ctx, conn), nil
}

// DialTLS is Dial for a TLS address with a port.
func DialTLS(ctx context.Context, address string, config *tls.Config) (*Conn, error) {
	dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: dialTimeout}, Config: config}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	return newConn(ctx, conn), nil
}

// dialTimeout bounds connecting over TCP, including the TLS handshake.
const dialTimeout = 5 * time.Second

func newConn(ctx context.Context, conn net.Conn) *Conn {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	return &Conn{conn: conn, forget: stop, decoder: json.NewDecoder(conn)}
}

// Close ends the connection.
func (c *Conn) Close() {
	c.forget()
	_ = c.conn.Close() // nothing is buffered that could fail to be written
}

// Call sends a request and waits for its response, which is decoded into result; a nil result discards it. Notifications that
// arrive before the response are queued for Receive. An error response is returned as *Error.
func (c *Conn) Call(method string, params, result any) error {
	c.lastID++
	id := c.lastID
	if err := json.NewEncoder(c.conn).Encode(request{ID: id, Method: method, Params: params}); err != nil {
		return fmt.Errorf("send %s: %w", method, err)
	}
	for {
		m, err := c.read()
		if err != nil {
			return fmt.Errorf("wait for the answer to %s: %w", method, err)
		}
		if m.Method != "" {
			c.pending = append(c.pending, Notification{Method: m.Method, Params: m.Params})
			continue
		}
		if string(m.ID) != fmt.Sprint(id) {
			continue
		}
		return m.decode(result)
	}
}

// Receive waits for the next notification.
func (c *Conn) Receive() (Notification, error) {
	if len(c.pending) > 0 {
		n := c.pending[0]
		c.pending = c.pending[1:]
		return n, nil
	}
	for {
		m, err := c.read()
		if err != nil {
			return Notification{}, fmt.Errorf("wait for a notification: %w", err)
		}
		if m.Method != "" {
			return Notification{Method: m.Method, Params: m.Params}, nil
		}
	}
}

// read returns the next message other than an echo request. It answers echo requests, because a server closes connections that
// do not.
func (c *Conn) read() (message, error) {
	for {
		var m message
		if err := c.decoder.Decode(&m); err != nil {
			return m, err
		}
		if m.Method != "echo" {
			return m, nil
		}
		if err := json.NewEncoder(c.conn).Encode(reply{ID: m.ID, Result: m.Params}); err != nil {
			return m, fmt.Errorf("answer an echo request: %w", err)
		}
	}
}

func (m message) decode(result any) error {
	if len(m.Error) > 0 && string(m.Error) != "null" {
		var text string
		if json.Unmarshal(m.Error, &text) != nil {
			text = string(m.Error)
		}
		return &Error{Text: text}
	}
	if result == nil {
		return nil
	}
	if err := json.Unmarshal(m.Result, result); err != nil {
		return fmt.Errorf("decode the answer: %w", err)
	}
	return nil
}
