// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package nbtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"path/filepath"
	"strconv"
	"sync"
)

// Fault is a fault that a Proxy injects into one transaction.
type Fault int

const (
	// RequestLost closes the connection instead of forwarding the transaction, which is never committed.
	RequestLost Fault = iota + 1
	// ReplyLost forwards the transaction, lets the server commit it, and closes the connection before the client receives any
	// result of it.
	ReplyLost
)

// Proxy forwards connections to a Server, counts transactions and injects faults.
type Proxy struct {
	server   *Server
	listener net.Listener
	endpoint string

	mu           sync.Mutex
	conns        map[net.Conn]struct{}
	closed       bool
	transactions int
	faults       map[int]Fault // by the number of the transaction
	poison       []byte        // nil: none
	gate         *gate         // nil: transactions pass
	limit        *limit        // nil: none
}

// limit is the number of the last transaction that passes.
type limit struct {
	last     int
	exceeded chan struct{} // closed when another transaction arrives
}

// gate holds transactions.
type gate struct {
	reached sync.Once
	held    chan struct{} // closed when the first transaction reaches the gate
	open    chan struct{} // closed when the gate opens
}

// Proxy starts a proxy to the server. It runs until the test ends.
func (s *Server) Proxy() *Proxy {
	s.t.Helper()
	path := filepath.Join(s.dir, "proxy"+strconv.FormatInt(lastID.Add(1), 10)+".sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		s.t.Fatal(err)
	}
	p := &Proxy{
		server: s, listener: listener, endpoint: "unix:" + path,
		conns: map[net.Conn]struct{}{}, faults: map[int]Fault{},
	}
	go p.accept()
	s.t.Cleanup(p.Close)
	return p
}

// Endpoint is the proxy's address, in OVSDB's form.
func (p *Proxy) Endpoint() string { return p.endpoint }

// Transactions returns the number of transactions sent so far, including dropped ones.
func (p *Proxy) Transactions() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.transactions
}

// Fail injects a fault into the nth transaction from now; 1 is the next one.
func (p *Proxy) Fail(nth int, fault Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults[p.transactions+nth] = fault
}

// Poison makes the proxy close the connection on each transaction that contains the text, as ovsdb-server does on a parse
// error. "" ends this.
func (p *Proxy) Poison(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.poison = []byte(text)
}

// Limit makes the proxy forward n more transactions, and lose all later ones, as if the client ended after n transactions. It closes the returned channel at the first lost one.
func (p *Proxy) Limit(n int) (exceeded <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limit = &limit{last: p.transactions + n, exceeded: make(chan struct{})}
	return p.limit.exceeded
}

// Hold makes the proxy block transactions, and later messages on their connections, until Release.
func (p *Proxy) Hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gate = &gate{held: make(chan struct{}), open: make(chan struct{})}
}

// AwaitHeld waits until the proxy holds a transaction.
func (p *Proxy) AwaitHeld() {
	p.mu.Lock()
	g := p.gate
	p.mu.Unlock()
	<-g.held
}

// Release forwards the held transactions.
func (p *Proxy) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.gate.open)
	p.gate = nil
}

// pass blocks while the gate is closed.
func (p *Proxy) pass() {
	p.mu.Lock()
	g := p.gate
	p.mu.Unlock()
	if g != nil {
		g.reached.Do(func() { close(g.held) })
		<-g.open
	}
}

// Close stops the proxy: it closes all connections and accepts no new ones.
func (p *Proxy) Close() {
	_ = p.listener.Close() // it may be closed already
	p.mu.Lock()
	p.closed = true // accept closes a connection that it has just made
	p.mu.Unlock()
	p.Cut()
}

// Cut closes all connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		_ = conn.Close()
	}
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("unix", p.server.socket())
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		p.conns[client], p.conns[server] = struct{}{}, struct{}{}
		if p.closed {
			_ = errors.Join(client.Close(), server.Close())
		}
		p.mu.Unlock()
		c := &proxied{proxy: p, client: client, server: server}
		go c.requests()
		go c.replies()
	}
}

// count counts a transaction and returns its fault, if any.
func (p *Proxy) count(transaction []byte) Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.transactions++
	if l := p.limit; l != nil && p.transactions > l.last {
		if p.transactions == l.last+1 {
			close(l.exceeded)
		}
		return RequestLost
	}
	if len(p.poison) > 0 && bytes.Contains(transaction, p.poison) {
		return RequestLost
	}
	return p.faults[p.transactions]
}

type proxied struct {
	proxy          *Proxy
	client, server net.Conn

	mu   sync.Mutex
	mute string // the ID of the request whose reply is lost; if set, the proxy forwards nothing to the client
}

func (c *proxied) close() {
	_ = c.client.Close()
	_ = c.server.Close()
	c.proxy.mu.Lock()
	defer c.proxy.mu.Unlock()
	delete(c.proxy.conns, c.client)
	delete(c.proxy.conns, c.server)
}

func (c *proxied) requests() {
	defer c.close()
	decoder := json.NewDecoder(c.client)
	for {
		var raw json.RawMessage
		if decoder.Decode(&raw) != nil {
			return
		}
		switch id, fault := c.inspect(raw); fault {
		case RequestLost:
			return
		case ReplyLost:
			c.mu.Lock()
			c.mute = id
			c.mu.Unlock()
		}
		if _, err := c.server.Write(raw); err != nil {
			return
		}
	}
}

func (c *proxied) inspect(raw json.RawMessage) (string, Fault) {
	var request struct {
		Method string
		Params []json.RawMessage
		ID     json.RawMessage
	}
	if json.Unmarshal(raw, &request) != nil || request.Method != "transact" || string(request.Params[0]) != `"`+database+`"` {
		return "", 0
	}
	c.proxy.pass()
	return string(request.ID), c.proxy.count(raw)
}

func (c *proxied) replies() {
	defer c.close()
	decoder := json.NewDecoder(c.server)
	for {
		var raw json.RawMessage
		if decoder.Decode(&raw) != nil {
			return
		}
		c.mu.Lock()
		mute := c.mute
		c.mu.Unlock()
		if mute == "" {
			if _, err := c.client.Write(raw); err != nil {
				return
			}
			continue
		}
		var reply struct{ ID json.RawMessage }
		if json.Unmarshal(raw, &reply) == nil && string(reply.ID) == mute {
			return
		}
	}
}
