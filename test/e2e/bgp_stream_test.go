// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netns"

	"github.com/kiln-net/kiln/hack/lab/fabric"
)

// streamPace is the time between two datagrams of a stream.
const streamPace = 10 * time.Millisecond

// stream sends datagrams to agnhost's UDP server, which returns them. Its sockets take turns, so that the flows take all paths.
type stream struct {
	sockets []net.Conn
	end     chan struct{}
	done    sync.WaitGroup

	mu       sync.Mutex
	sent     []time.Time
	answered map[int]bool
}

// startStream sends datagrams from a machine until stop.
func startStream(machine string, to netip.AddrPort) *stream {
	GinkgoHelper()
	s := &stream{end: make(chan struct{}), answered: map[int]bool{}}
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		ns, err := netns.GetFromPath(fabric.NetnsPath(machine))
		if err == nil {
			defer ns.Close()
			err = netns.Set(ns)
		}
		for range 16 {
			if err != nil {
				break
			}
			var c *net.UDPConn
			if c, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to)); err == nil {
				s.sockets = append(s.sockets, c)
			}
		}
		failed <- err
	}()
	Expect(<-failed).To(Succeed())
	for _, c := range s.sockets {
		s.done.Go(func() { s.receive(c) })
	}
	s.done.Go(s.send)
	DeferCleanup(s.stop)
	return s
}

func (s *stream) send() {
	tick := time.NewTicker(streamPace)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-s.end:
			return
		case <-tick.C:
		}
		s.mu.Lock()
		s.sent = append(s.sent, time.Now())
		s.mu.Unlock()
		_, _ = fmt.Fprintf(s.sockets[i%len(s.sockets)], "echo %d", i) // an error is an ICMP message about an earlier datagram
	}
}

func (s *stream) receive(c net.Conn) {
	buffer := make([]byte, 64)
	for {
		n, err := c.Read(buffer)
		if err != nil && (strings.Contains(err.Error(), net.ErrClosed.Error()) || os.IsTimeout(err)) {
			return
		}
		if i, err := strconv.Atoi(strings.TrimSpace(string(buffer[:n]))); err == nil {
			s.mu.Lock()
			s.answered[i] = true
			s.mu.Unlock()
		}
	}
}

// stop ends the stream after the last answers. A second call changes nothing.
func (s *stream) stop() {
	if s.sockets == nil {
		return
	}
	close(s.end)
	for _, c := range s.sockets {
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
	}
	s.done.Wait()
	for _, c := range s.sockets {
		_ = c.Close()
	}
	s.sockets = nil
}

// lost returns the numbers of datagrams without an answer after each of these times and before the next one.
func (s *stream) lost(since []time.Time) []int {
	s.stop()
	counts := make([]int, len(since))
	for i, at := range s.sent {
		if s.answered[i] {
			continue
		}
		after := slices.IndexFunc(since, func(t time.Time) bool { return t.After(at) })
		if after < 0 {
			after = len(since)
		}
		if after > 0 {
			counts[after-1]++
		}
	}
	return counts
}

// answers reports whether the stream gets answers now.
func (s *stream) answers() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := max(0, len(s.sent)-50); i < len(s.sent); i++ {
		if s.answered[i] {
			return true
		}
	}
	return false
}
