// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/ovsdb/client"
	"github.com/kiln-net/kiln/internal/testing/eventually"
)

func TestAMemberThatDoesNotLeadIsRefused(t *testing.T) {
	servers := nbtest.StartCluster(t, 3)
	leader := nbtest.Leader(servers)
	for _, s := range servers {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		session, err := client.Northbound(ctx, client.Options{Endpoints: []string{s.Endpoint()}})
		cancel()
		if err == nil {
			session.Close()
		}
		switch {
		case s == leader && err != nil:
			t.Errorf("the leader: %v", err)
		case s != leader && (err == nil || !strings.Contains(err.Error(), "does not lead")):
			t.Errorf("a follower: %v, want that it does not lead", err)
		}
	}
}

func TestATransactionWithoutAnAnswerEndsTheConnection(t *testing.T) {
	proxy := nbtest.Start(t).Proxy()
	session, err := client.Northbound(t.Context(), client.Options{Endpoints: []string{proxy.Endpoint()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(session.Close)
	session.SetTransactTimeout(100 * time.Millisecond)
	operations := []ovsdb.Operation{{Op: "comment", Comment: new("nothing")}}
	proxy.Hold()
	if _, err := session.Transact(t.Context(), operations); !errors.Is(err, client.ErrOutcomeUnknown) {
		t.Errorf("got %v, want ErrOutcomeUnknown", err)
	}
	if _, err := session.Transact(t.Context(), operations); !errors.Is(err, client.ErrNotConnected) {
		t.Errorf("after a transaction without an answer: got %v, want ErrNotConnected", err)
	}
	proxy.Release()
	if err := session.WaitConnected(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A member on a failed node does not reply at all: a SYN to it is lost. A frozen server leaves its socket open.
func TestASilentMemberDelaysNoOtherMember(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	server := nbtest.Start(t)
	silent := "tcp:" + listener.Addr().String()
	for _, endpoints := range [][]string{{silent, silent, server.Endpoint()}, {server.Endpoint(), silent}} {
		connects(t, endpoints)
	}
}

// During an election the other members reply that they do not lead. The session finds the winner at once, even if a member on a
// failed node does not reply.
func TestASilentMemberDoesNotDelayTheNextAttempt(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	servers := nbtest.StartCluster(t, 3)
	leader := nbtest.Leader(servers)
	follower := servers[0]
	if follower == leader {
		follower = servers[1]
	}
	elected := forward(t, follower.Endpoint(), leader.Endpoint())
	connects(t, []string{"tcp:" + silent.Addr().String(), elected})
}

// connects connects to the leader among endpoints. It fails if the session waits for a member that does not answer.
func connects(t *testing.T, endpoints []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), eventually.Capped(2*time.Minute))
	defer cancel()
	session, err := client.Northbound(ctx, client.WaitingForLeaders(endpoints))
	if err != nil {
		t.Fatalf("connect to %v: %v", endpoints, err)
	}
	session.Close()
}

// forward is an endpoint that connects first to one server, and from the second connection on to another one, as if a member
// won an election.
func forward(t *testing.T, endpoints ...string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			network, address, _ := strings.Cut(endpoints[0], ":")
			if len(endpoints) > 1 {
				endpoints = endpoints[1:]
			}
			out, err := net.Dial(network, address)
			if err != nil {
				t.Error(err)
				_ = in.Close()
				continue
			}
			for _, ends := range [][2]net.Conn{{in, out}, {out, in}} {
				go func() {
					_, _ = io.Copy(ends[0], ends[1])
					_ = ends[0].Close()
				}()
			}
		}
	}()
	return "tcp:" + listener.Addr().String()
}
