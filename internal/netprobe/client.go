// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package netprobe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kiln-net/kiln/internal/netprobe/socket"
)

// Protocols of targets.
const (
	ICMP    = "icmp"    // Address is an address
	TCP     = "tcp"     // an HTTP request of payload bytes to a server of this package; Address is host:port
	UDP     = "udp"     // a datagram to a server of this package
	Connect = "connect" // a TCP connection to any server
	Name    = "name"    // Address is a name, and Want one of the addresses that it must have
)

const (
	// payload is the size of the body of a request, which needs several packets in each direction.
	payload = 20000
	// attemptTime bounds one attempt, and pause is the time between two of them.
	attemptTime, pause = 2 * time.Second, 200 * time.Millisecond
	// silent is the number of attempts in succession without an answer after which a target counts as blocked.
	silent = 2
	// atOnce is the number of targets that are tried at the same time.
	atOnce = 64
)

// Target is an address or name that a client tries to reach.
type Target struct {
	Protocol string `json:"protocol"`
	Address  string `json:"address"`
	// Want is the name of the server that must answer.
	Want string `json:"want,omitempty"`
	// Size of the IP packet with the datagram, in bytes, for UDP. Routers on the way may not fragment it. By default it is small.
	Size int `json:"size,omitempty"`
	// Blocked is true if there must be no answer.
	Blocked bool `json:"blocked,omitempty"`
	// Within bounds the time until the target answers, or no longer answers.
	Within time.Duration `json:"within"`
}

// Answer is the outcome for a target.
type Answer struct {
	// Error is empty if the outcome is the expected one.
	Error string        `json:"error,omitempty"`
	Took  time.Duration `json:"took"`
}

// Client tries targets.
type Client struct {
	// Ping sends echo requests to an address. It returns an error if there is no reply.
	Ping func(ctx context.Context, to netip.Addr) error
}

// Probe tries all targets at the same time, each until it has the expected outcome or its time has passed.
func (c Client) Probe(ctx context.Context, targets []Target) []Answer {
	answers := make([]Answer, len(targets))
	slots := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for i, t := range targets {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			began := time.Now()
			if err := c.expect(ctx, t, began.Add(t.Within)); err != nil {
				answers[i].Error = err.Error()
			}
			answers[i].Took = time.Since(began)
		})
	}
	all.Wait()
	return answers
}

// expect returns nil once the target has the expected outcome.
func (c Client) expect(ctx context.Context, t Target, end time.Time) error {
	unanswered := 0
	for {
		attempt, cancel := context.WithTimeout(ctx, attemptTime)
		err := c.try(attempt, t)
		cancel()
		switch {
		case t.Blocked && err == nil:
			unanswered, err = 0, errors.New("it answers, and must not")
		case t.Blocked:
			if unanswered++; unanswered == silent {
				return nil
			}
		case err == nil:
			return nil
		}
		if time.Now().After(end) {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		}
	}
}

func (c Client) try(ctx context.Context, t Target) error {
	switch t.Protocol {
	case ICMP:
		to, err := netip.ParseAddr(t.Address)
		if err != nil {
			return fmt.Errorf("parse the target: %w", err)
		}
		return c.Ping(ctx, to)
	case TCP:
		return request(ctx, t)
	case UDP:
		return datagram(ctx, t)
	case Connect:
		connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", t.Address)
		if err != nil {
			return err
		}
		return connection.Close()
	case Name:
		return resolve(ctx, t)
	}
	return fmt.Errorf("no protocol %q", t.Protocol)
}

// request sends a body of payload bytes, on a connection of its own, and compares the answer.
func request(ctx context.Context, t Target) error {
	sent := bytes.Repeat([]byte("0123456789"), payload/10)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+t.Address+"/", bytes.NewReader(sent))
	if err != nil {
		return fmt.Errorf("make the request: %w", err)
	}
	transport := &http.Transport{DisableKeepAlives: true} // and no proxy
	defer transport.CloseIdleConnections()
	answer, err := transport.RoundTrip(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	received, err := io.ReadAll(io.LimitReader(answer.Body, largestBody))
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	if name := answer.Header.Get(nameHeader); name != t.Want {
		return fmt.Errorf("%q answers instead of %q", name, t.Want)
	}
	if !bytes.Equal(sent, received) {
		return fmt.Errorf("it returned %d bytes of %d, or others", len(received), len(sent))
	}
	return nil
}

func datagram(ctx context.Context, t Target) error {
	connection, err := (&net.Dialer{}).DialContext(ctx, "udp", t.Address)
	if err != nil {
		return err
	}
	defer connection.Close()
	deadline, _ := ctx.Deadline()
	if err := connection.SetDeadline(deadline); err != nil {
		return fmt.Errorf("set the deadline: %w", err)
	}
	sent := fmt.Sprint(time.Now().UnixNano())
	packet := []byte(sent)
	if t.Size > 0 {
		if packet, err = padded(connection.(*net.UDPConn), sent, t.Size); err != nil {
			return err
		}
	}
	switch _, err := connection.Write(packet); {
	case socket.TooLarge(err):
		return fmt.Errorf("a packet of %d bytes is too large for the path", t.Size)
	case err != nil:
		return fmt.Errorf("send a datagram: %w", err)
	}
	buffer := make([]byte, largestDatagram)
	n, err := connection.Read(buffer)
	if err != nil {
		return fmt.Errorf("receive a datagram: %w", err)
	}
	if name, content, _ := strings.Cut(string(buffer[:n]), "\n"); name != t.Want || content != sent {
		return fmt.Errorf("%q answers instead of %q, or with another content", name, t.Want)
	}
	return nil
}

// padded returns a datagram whose IP packet has a size, and that may not be fragmented. The server does not return the padding.
func padded(connection *net.UDPConn, content string, size int) ([]byte, error) {
	largest, err := socket.ForbidFragments(connection)
	if err != nil {
		return nil, fmt.Errorf("forbid fragments: %w", err)
	}
	headers := socket.Headers(connection)
	if size > largest+headers {
		return nil, fmt.Errorf("a packet of %d bytes is too large: the path takes %d", size, largest+headers)
	}
	return append([]byte(content), make([]byte, max(size-headers-len(content), 0))...), nil
}

// resolve looks a name up in the family of the address that it must have.
func resolve(ctx context.Context, t Target) error {
	want, err := netip.ParseAddr(t.Want)
	if err != nil {
		return fmt.Errorf("parse the target: %w", err)
	}
	network := "ip4"
	if want.Is6() {
		network = "ip6"
	}
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, network, t.Address)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(addresses, func(a netip.Addr) bool { return a.Unmap() == want }) {
		return fmt.Errorf("it has the addresses %v, want %s", addresses, want)
	}
	return nil
}
