// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package netprobe

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kiln-net/kiln/internal/testing/must"
)

// serve starts a server named "there" at an address, and returns the address with its port.
func serve(t *testing.T, address string) string {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	must.Succeed(t, err)
	at := listener.Addr().String()
	must.Succeed(t, listener.Close())
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, at, "there") }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return at
}

func TestProbe(t *testing.T) {
	client := Client{Ping: func(_ context.Context, to netip.Addr) error {
		if to.IsLoopback() {
			return nil
		}
		return errors.New("no reply")
	}}
	for _, address := range []string{"127.0.0.1", "::1"} {
		at := serve(t, address)
		_, port, err := net.SplitHostPort(at)
		must.Succeed(t, err)
		closed := net.JoinHostPort(address, "1")
		const soon, never = 5 * time.Second, 50 * time.Millisecond
		for _, c := range []struct {
			target Target
			want   string // in the error
		}{
			{Target{Protocol: TCP, Address: at, Want: "there", Within: soon}, ""},
			{Target{Protocol: UDP, Address: at, Want: "there", Within: soon}, ""},
			{Target{Protocol: UDP, Address: at, Want: "there", Size: 1400, Within: soon}, ""},
			{Target{Protocol: UDP, Address: at, Want: "there", Size: 9000, Within: soon}, ""},
			{Target{Protocol: UDP, Address: at, Want: "there", Size: 65537, Within: never}, "a packet of 65537 bytes is too large: the path takes 655"},
			{Target{Protocol: Connect, Address: at, Within: soon}, ""},
			{Target{Protocol: ICMP, Address: address, Within: soon}, ""},
			{Target{Protocol: Name, Address: address, Want: address, Within: soon}, ""},
			{Target{Protocol: TCP, Address: closed, Want: "there", Blocked: true, Within: soon}, ""},
			{Target{Protocol: UDP, Address: closed, Want: "there", Blocked: true, Within: soon}, ""},
			{Target{Protocol: ICMP, Address: "192.0.2.1", Blocked: true, Within: soon}, ""},
			{Target{Protocol: TCP, Address: at, Want: "other", Within: never}, `"there" answers instead of "other"`},
			{Target{Protocol: UDP, Address: at, Want: "other", Within: never}, `"there" answers instead of "other"`},
			{Target{Protocol: TCP, Address: at, Want: "there", Blocked: true, Within: never}, "it answers, and must not"},
			{Target{Protocol: Connect, Address: closed, Within: never}, "refused"},
			{Target{Protocol: ICMP, Address: "name", Within: never}, "parse the target"},
			{Target{Protocol: ICMP, Address: "192.0.2.1", Within: never}, "no reply"},
			{Target{Protocol: Name, Address: address, Want: map[string]string{"127.0.0.1": "127.0.0.2", "::1": "::2"}[address], Within: never}, "it has the addresses"},
			{Target{Protocol: "sctp", Address: at, Within: never}, `no protocol "sctp"`},
		} {
			got := client.Probe(t.Context(), []Target{c.target})[0].Error
			if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
				t.Errorf("port %s, %+v: %q, want %q", port, c.target, got, c.want)
			}
		}
	}
}

func TestAnAnswerGetsNoAnswer(t *testing.T) {
	conn, err := net.Dial("udp", serve(t, "127.0.0.1"))
	must.Succeed(t, err)
	defer conn.Close()
	must.Succeed(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	buffer := make([]byte, 100)
	// The server may start later: its answer to a request says that it listens.
	for _, err = conn.Write([]byte("0")); ; _, err = conn.Write([]byte("0")) {
		if _, refused := conn.Read(buffer); err == nil && refused == nil {
			break
		}
		must.Succeed(t, t.Context().Err())
	}
	for _, datagram := range []string{"other\n1", "2"} {
		_, err := conn.Write([]byte(datagram))
		must.Succeed(t, err)
	}
	n, err := conn.Read(buffer)
	must.Succeed(t, err)
	if got := string(buffer[:n]); got != "there\n2" {
		t.Errorf("the next answer is %q", got)
	}
}

func TestConnectionsOfAServerAreBounded(t *testing.T) {
	listener, packets, err := Listen(t.Context(), "127.0.0.1:0")
	must.Succeed(t, err)
	defer packets.Close()
	defer listener.Close()
	accepted := make(chan net.Conn)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	var first net.Conn
	for range largestConnections + 1 {
		conn, err := net.Dial("tcp", listener.Addr().String())
		must.Succeed(t, err)
		defer conn.Close()
	}
	for range largestConnections {
		first = <-accepted
		defer first.Close()
	}
	select {
	case <-accepted:
		t.Error("a connection above the bound is accepted")
	case <-time.After(50 * time.Millisecond):
	}
	must.Succeed(t, first.Close())
	must.Succeed(t, (<-accepted).Close())
}

// TestProbesWait: a server that starts later is reached, and an interrupt ends the attempts.
func TestProbesWait(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	at := listener.Addr().String()
	must.Succeed(t, listener.Close())
	target := Target{Protocol: TCP, Address: at, Want: "there", Within: time.Minute}
	ctx, interrupt := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer interrupt()
	if answer := (Client{}).Probe(ctx, []Target{target})[0]; answer.Error == "" || answer.Took > 30*time.Second {
		t.Errorf("an interrupt: %+v", answer)
	}
	serving, stop := context.WithCancel(t.Context())
	defer stop()
	timer := time.AfterFunc(300*time.Millisecond, func() { _ = Serve(serving, at, "there") })
	defer timer.Stop()
	if answer := (Client{}).Probe(t.Context(), []Target{target})[0]; answer.Error != "" || answer.Took < 300*time.Millisecond {
		t.Errorf("a server that starts later: %+v", answer)
	}
}
