// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// conn is one JSON-RPC 1.0 connection (RFC 7047, section 4). The reading goroutine handles replies and notifications in the
// order of arrival. Therefore, when a reply is handled, all updates that the server sent before it are in the replica.
type conn struct {
	raw    net.Conn
	notify func(method string, params []json.RawMessage) error
	idle   *time.Timer
	ids    atomic.Uint64
	useful atomic.Bool   // the server has replied to a transaction
	done   chan struct{} // closed when the connection has ended; err then holds the reason

	// writing is separate from mu: ovsdb-server does not read while its own output is blocked, so reading must continue during
	// a write.
	writing sync.Mutex

	mu          sync.Mutex // guards the fields below
	pending     map[uint64]func(json.RawMessage, error)
	transacting map[uint64]bool // the subset of pending that are transactions
	probing     bool
	err         error
}

type message struct {
	Method string            `json:"method,omitempty"`
	Params []json.RawMessage `json:"params,omitempty"`
	ID     json.RawMessage   `json:"id"`
	Result json.RawMessage   `json:"result,omitempty"`
	Error  json.RawMessage   `json:"error,omitempty"`
}

type call struct {
	Method string `json:"method"`
	Params []any  `json:"params"`
	ID     uint64 `json:"id"`
}

type reply struct {
	Result []json.RawMessage `json:"result"`
	Error  any               `json:"error"`
	ID     json.RawMessage   `json:"id"`
}

var (
	// errClosed reports that a request was not sent, because the connection has ended.
	errClosed = errors.New("connection is closed")
	// errRefused reports that a request cannot be encoded, or that the server returned an error for the request as a whole.
	errRefused = errors.New("request refused")
)

func newConn(raw net.Conn, notify func(string, []json.RawMessage) error) *conn {
	c := &conn{
		raw:         raw,
		notify:      notify,
		done:        make(chan struct{}),
		pending:     map[uint64]func(json.RawMessage, error){},
		transacting: map[uint64]bool{},
	}
	c.mu.Lock() // the timer's function reads idle
	c.idle = time.AfterFunc(probeInterval, c.probe)
	c.mu.Unlock()
	go c.run()
	return c
}

// call sends a request. The reading goroutine calls handle once, with the result or with the error that ended the connection.
// If call returns an error, nothing was sent and handle is never called.
func (c *conn) call(method string, params []any, handle func(json.RawMessage, error)) error {
	id := c.ids.Add(1)
	frame, err := json.Marshal(call{Method: method, Params: params, ID: id})
	if err != nil {
		return fmt.Errorf("%w: encode %s: %w", errRefused, method, err)
	}
	if !c.expect(id, method, handle) {
		return errClosed
	}
	c.write(frame)
	return nil
}

func (c *conn) expect(id uint64, method string, handle func(json.RawMessage, error)) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return false
	}
	c.pending[id] = handle
	if method == "transact" {
		c.transacting[id] = true
		if len(c.transacting) == 1 && !c.probing {
			c.rest()
		}
	}
	return true
}

// write sends one frame. An error closes the connection and fails every pending call, because part of the frame may have been
// sent.
func (c *conn) write(frame []byte) {
	c.writing.Lock()
	defer c.writing.Unlock()
	_ = c.raw.SetWriteDeadline(time.Now().Add(probeTimeout)) // fails only on a closed connection, on which the write fails, too
	if _, err := c.raw.Write(frame); err != nil {
		_ = c.raw.Close() // the reader notices and cleans up
	}
}

// keptBuffer is the largest message buffer in bytes that a connection retains. Larger messages are rare: the first is the whole
// database.
const keptBuffer = 1 << 20

func (c *conn) run() {
	var in io.Reader = bufio.NewReaderSize(c.raw, 64<<10)
	decoder := json.NewDecoder(in)
	var err error
	for err == nil {
		begin := decoder.InputOffset()
		var m message
		if err = decoder.Decode(&m); err != nil {
			break
		}
		c.seen()
		if decoder.InputOffset()-begin > keptBuffer { // a decoder never shrinks its buffer
			in = io.MultiReader(decoder.Buffered(), in)
			decoder = json.NewDecoder(in)
		}
		err = c.handle(&m)
	}
	c.end(err)
}

func (c *conn) handle(m *message) error {
	switch m.Method {
	case "":
		return c.handleReply(m)
	case "echo":
		frame, err := json.Marshal(reply{Result: m.Params, ID: m.ID})
		if err != nil {
			return fmt.Errorf("encode echo: %w", err)
		}
		go c.write(frame)
		return nil
	default:
		return c.notify(m.Method, m.Params)
	}
}

func (c *conn) handleReply(m *message) error {
	var id uint64
	if err := json.Unmarshal(m.ID, &id); err != nil {
		return fmt.Errorf("reply with id %s: %w", m.ID, err)
	}
	c.mu.Lock()
	handle := c.pending[id]
	delete(c.pending, id)
	if c.transacting[id] {
		delete(c.transacting, id)
		c.rest()
	}
	c.mu.Unlock()
	if handle == nil {
		return nil
	}
	if len(m.Error) > 0 && string(m.Error) != "null" {
		handle(nil, fmt.Errorf("%w: %s", errRefused, m.Error))
		return nil
	}
	handle(m.Result, nil)
	return nil
}

// seen records that the peer is alive.
func (c *conn) seen() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.probing = false
		c.rest()
	}
}

// rest restarts the timer of the next probe. The caller holds mu.
func (c *conn) rest() {
	if len(c.transacting) > 0 {
		c.idle.Reset(answerInterval)
	} else {
		c.idle.Reset(probeInterval)
	}
}

// probe sends an echo request to an idle peer, and closes the connection if the previous probe had no reply.
func (c *conn) probe() {
	c.mu.Lock()
	silent := c.probing
	c.probing = true
	if c.err == nil {
		c.idle.Reset(probeTimeout)
	}
	c.mu.Unlock()
	if silent {
		c.close()
		return
	}
	_ = c.call("echo", []any{"kiln"}, func(json.RawMessage, error) {}) // a closed connection needs no probe
}

func (c *conn) end(err error) {
	c.mu.Lock()
	c.err = err
	c.idle.Stop()
	pending := c.pending
	c.pending = nil
	c.mu.Unlock()
	_ = c.raw.Close() // may be closed already
	for _, handle := range pending {
		handle(nil, fmt.Errorf("%w: connection lost: %w", errNoReply, err))
	}
	close(c.done)
}

// close closes the socket; the reading goroutine then ends the connection and closes done.
func (c *conn) close() { _ = c.raw.Close() }
