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

// Fault is what a Proxy does to one transaction.
type Fault int

const (
	// RequestLost cuts the connection instead of passing the transaction on: it is never committed.
	RequestLost Fault = iota + 1
	// ReplyLost passes the transaction on, lets the server commit it, and cuts the connection before anything of that comes back.
	ReplyLost
)

// Proxy stands between clients and a Server, counts transactions and makes faults.
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
}

// gate holds transactions.
type gate struct {
	reached sync.Once
	held    chan struct{} // closed when a transaction stands before it
	open    chan struct{} // closed when it opens
}

// Proxy starts a proxy to the server that runs until the test ends.
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

// Endpoint is where the proxy listens, in OVSDB's form.
func (p *Proxy) Endpoint() string { return p.endpoint }

// Transactions is the number of transactions sent so far, those that were cut off included.
func (p *Proxy) Transactions() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.transactions
}

// Fail makes the nth transaction from now meet a fault; 1 is the next one.
func (p *Proxy) Fail(nth int, fault Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults[p.transactions+nth] = fault
}

// Poison makes the proxy cut the connection at each transaction that has the text, as ovsdb-server does when it cannot parse one. "" ends it.
func (p *Proxy) Poison(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.poison = []byte(text)
}

// Hold makes the proxy keep transactions, and what follows them on their connections, until Release.
func (p *Proxy) Hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gate = &gate{held: make(chan struct{}), open: make(chan struct{})}
}

// AwaitHeld returns when a transaction is held.
func (p *Proxy) AwaitHeld() {
	p.mu.Lock()
	g := p.gate
	p.mu.Unlock()
	<-g.held
}

// Release lets held transactions pass.
func (p *Proxy) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.gate.open)
	p.gate = nil
}

// pass returns when the transaction may go on.
func (p *Proxy) pass() {
	p.mu.Lock()
	g := p.gate
	p.mu.Unlock()
	if g != nil {
		g.reached.Do(func() { close(g.held) })
		<-g.open
	}
}

// Close ends the proxy: it cuts all connections and takes no more.
func (p *Proxy) Close() {
	_ = p.listener.Close() // it may be closed already
	p.mu.Lock()
	p.closed = true // for a connection that is just being made
	p.mu.Unlock()
	p.Cut()
}

// Cut cuts all connections.
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

// count numbers a transaction and returns the fault it meets, if any.
func (p *Proxy) count(transaction []byte) Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.transactions++
	if len(p.poison) > 0 && bytes.Contains(transaction, p.poison) {
		return RequestLost
	}
	return p.faults[p.transactions]
}

type proxied struct {
	proxy          *Proxy
	client, server net.Conn

	mu   sync.Mutex
	mute string // the id of the request whose reply is lost; nothing reaches the client any more
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
