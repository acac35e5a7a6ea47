// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"encoding/json"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// peer is the other end of a connection.
type peer struct {
	t       *testing.T
	raw     net.Conn
	decoder *json.Decoder
}

func connect(t *testing.T, notify func(string, []json.RawMessage) error) (*conn, *peer) {
	near, far := net.Pipe()
	return newConn(near, notify), &peer{t: t, raw: far, decoder: json.NewDecoder(far)}
}

func (p *peer) expect(method string) message {
	p.t.Helper()
	var m message
	if err := p.decoder.Decode(&m); err != nil {
		p.t.Fatal(err)
	}
	if m.Method != method {
		p.t.Fatalf("got method %q, want %q", m.Method, method)
	}
	return m
}

func (p *peer) send(frame string) {
	p.t.Helper()
	if _, err := p.raw.Write([]byte(frame)); err != nil {
		p.t.Fatal(err)
	}
}

func TestASilentPeerIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := connect(t, nil)
		start := time.Now()
		p.expect("echo")
		if got := time.Since(start); got != probeInterval {
			t.Errorf("probed after %s", got)
		}
		<-c.done
		if got := time.Since(start); got != probeInterval+probeTimeout {
			t.Errorf("given up after %s", got)
		}
	})
}

func TestAPeerThatDoesNotAnswerATransactionIsGivenUpSooner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := connect(t, nil)
		transact := func() message {
			go func() { _ = c.call("transact", nil, func(json.RawMessage, error) {}) }() // the pipe has no buffer
			return p.expect("transact")
		}
		m := transact()
		p.send(`{"id":` + string(m.ID) + `,"result":[],"error":null}`)
		start := time.Now()
		m = p.expect("echo")
		if got := time.Since(start); got != probeInterval {
			t.Errorf("probed %s after an answer", got)
		}
		p.send(`{"id":` + string(m.ID) + `,"result":[],"error":null}`)
		time.Sleep(probeInterval / 2)
		transact()
		start = time.Now()
		p.expect("echo")
		if got := time.Since(start); got != answerInterval {
			t.Errorf("probed %s after a transaction", got)
		}
		<-c.done
		if got := time.Since(start); got != answerInterval+probeTimeout {
			t.Errorf("given up after %s", got)
		}
	})
}

func TestAPeerThatAnswersProbesStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := connect(t, nil)
		for range 10 {
			m := p.expect("echo")
			p.send(`{"id":` + string(m.ID) + `,"result":[],"error":null}`)
		}
		p.send(`{"id":"probe","method":"echo","params":["x"]}`)
		if m := p.expect(""); string(m.ID) != `"probe"` || string(m.Result) != `["x"]` {
			t.Errorf("answer to the peer's probe: %s %s", m.ID, m.Result)
		}
		select {
		case <-c.done:
			t.Error("the connection ended")
		default:
		}
		c.close()
		<-c.done
	})
}

func TestRepliesFollowTheUpdatesSentBeforeThem(t *testing.T) {
	var seen []string
	c, p := connect(t, func(method string, _ []json.RawMessage) error {
		seen = append(seen, method)
		return nil
	})
	done := make(chan []string, 1)
	go func() {
		err := c.call("transact", nil, func(json.RawMessage, error) { done <- seen })
		if err != nil {
			t.Error(err)
		}
	}()
	m := p.expect("transact")
	p.send(`{"method":"update3","params":[],"id":null}{"id":` + string(m.ID) + `,"result":[],"error":null}`)
	if got := <-done; len(got) != 1 {
		t.Errorf("seen before the reply: %v", got)
	}
	c.close()
	<-c.done
}

func TestCausesOfEndedRequestsAreDistinguished(t *testing.T) {
	c, p := connect(t, func(string, []json.RawMessage) error { return errors.New("bad update") })
	outcome := make(chan error, 1)
	request := func() { // the pipe has no buffer
		if err := c.call("transact", nil, func(_ json.RawMessage, err error) { outcome <- err }); err != nil {
			outcome <- err
		}
	}
	go request()
	m := p.expect("transact")
	p.send(`{"id":` + string(m.ID) + `,"result":null,"error":"unknown database"}`)
	if err := <-outcome; !errors.Is(err, errRefused) {
		t.Errorf("the server's error: got %v", err)
	}
	go request()
	p.expect("transact")
	p.send(`{"method":"update3","params":[],"id":null}`) // an update that fails ends the connection
	if err := <-outcome; !errors.Is(err, errNoReply) {
		t.Errorf("a lost connection: got %v", err)
	}
	<-c.done
	request()
	if err := <-outcome; !errors.Is(err, errClosed) {
		t.Errorf("after the end: got %v", err)
	}
}

// The decoder is replaced after a large message. Data that arrived with that message must not be lost.
func TestMessagesBehindALargeOneAreNotLost(t *testing.T) {
	var sizes []int
	ended := make(chan struct{})
	_, p := connect(t, func(method string, params []json.RawMessage) error {
		if method == "end" {
			close(ended)
			return nil
		}
		sizes = append(sizes, len(params[0]))
		return nil
	})
	small, large := `"x"`, `"`+strings.Repeat("x", 2*keptBuffer)+`"`
	update := func(param string) string { return `{"method":"update3","params":[` + param + `],"id":null}` }
	p.send(update(small) + update(large) + update(small) + update(large) + update(large) + update(small))
	p.send(update(small) + `{"method":"end","params":[],"id":null}`)
	<-ended
	if want := []int{len(small), len(large), len(small), len(large), len(large), len(small), len(small)}; !slices.Equal(sizes, want) {
		t.Errorf("messages of %v bytes, want %v", sizes, want)
	}
}
