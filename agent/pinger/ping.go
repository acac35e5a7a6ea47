// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pinger

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// echo are the parameters of one ping.
type echo struct {
	// count is the number of requests, and interval the time between two of them.
	count    int
	interval time.Duration
	// timeout is the time after the last request in which replies count.
	timeout time.Duration
}

// requests is the ping of one target in one round.
var requests = echo{count: 3, interval: 100 * time.Millisecond, timeout: time.Second}

// Ping sends an echo request to an address. It returns an error if it cannot send, or if there is no reply within a second.
func Ping(ctx context.Context, to netip.Addr) error {
	replies, err := echo{count: 1, interval: time.Second, timeout: time.Second}.ping(ctx, to)
	if err == nil && len(replies) == 0 {
		err = errors.New("no reply")
	}
	return err
}

// ping sends echo requests to the target and returns the round-trip times of the replies, fewer than e.count if packets were lost. It returns an
// error if it cannot send. It uses the kernel's sockets for echo requests (icmp(7), ping_group_range), which need no capability and deliver only
// the replies to their own requests.
func (e echo) ping(ctx context.Context, target netip.Addr) ([]time.Duration, error) {
	network, local := "udp4", "0.0.0.0"
	if target.Is6() {
		network, local = "udp6", "::"
	}
	socket, err := icmp.ListenPacket(network, local)
	if err != nil {
		return nil, fmt.Errorf("open a socket for echo requests (net.ipv4.ping_group_range allows it): %w", err)
	}
	defer socket.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = socket.SetReadDeadline(time.Unix(1, 0)) })()
	if err := socket.SetReadDeadline(time.Now().Add(time.Duration(e.count-1)*e.interval + e.timeout)); err != nil {
		return nil, fmt.Errorf("set the deadline of replies: %w", err)
	}
	out := &sent{times: make([]time.Time, e.count)}
	done := make(chan error, 1)
	go func() {
		err := out.send(ctx, socket, target, e.interval)
		if err != nil {
			cancel() // no reply will come
		}
		done <- err
	}()
	replies, err := out.receive(socket, target)
	cancel()
	sendErr := <-done
	if len(replies) > 0 {
		return replies, nil
	}
	return nil, errors.Join(sendErr, err)
}

// sent has the times of the requests, by sequence number. The zero time is a request that was not sent, or whose reply was received.
type sent struct {
	mu    sync.Mutex
	times []time.Time
}

// send sends all requests. It returns nil if ctx ends before that.
func (s *sent) send(ctx context.Context, socket *icmp.PacketConn, target netip.Addr, interval time.Duration) error {
	var kind icmp.Type = ipv4.ICMPTypeEcho
	if target.Is6() {
		kind = ipv6.ICMPTypeEchoRequest
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for sequence := range s.times {
		// The kernel sets the identifier and the checksum.
		packet, err := (&icmp.Message{Type: kind, Body: &icmp.Echo{Seq: sequence, Data: make([]byte, 56)}}).Marshal(nil)
		if err != nil {
			return fmt.Errorf("encode an echo request: %w", err)
		}
		s.mu.Lock()
		s.times[sequence] = time.Now()
		s.mu.Unlock()
		if _, err := socket.WriteTo(packet, &net.UDPAddr{IP: target.AsSlice(), Zone: target.Zone()}); err != nil {
			return fmt.Errorf("send an echo request to %s: %w", target, err)
		}
		if sequence == len(s.times)-1 {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// receive reads replies until each request has one, or until the socket's deadline.
func (s *sent) receive(socket *icmp.PacketConn, target netip.Addr) ([]time.Duration, error) {
	protocol := ipv4.ICMPTypeEchoReply.Protocol()
	if target.Is6() {
		protocol = ipv6.ICMPTypeEchoReply.Protocol()
	}
	var replies []time.Duration
	buffer := make([]byte, 1500)
	for len(replies) < len(s.times) {
		n, from, err := socket.ReadFrom(buffer)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return replies, nil
		}
		if err != nil {
			return replies, fmt.Errorf("receive echo replies from %s: %w", target, err)
		}
		received := time.Now()
		udp, isUDP := from.(*net.UDPAddr)
		if !isUDP || udp.AddrPort().Addr().Unmap().WithZone("") != target.WithZone("") {
			continue
		}
		message, err := icmp.ParseMessage(protocol, buffer[:n])
		if err != nil {
			continue // of another program
		}
		if reply, is := message.Body.(*icmp.Echo); is {
			if began := s.take(reply.Seq); !began.IsZero() {
				replies = append(replies, received.Sub(began))
			}
		}
	}
	return replies, nil
}

// take returns the time of a request, only once, so that duplicate replies do not count.
func (s *sent) take(sequence int) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sequence < 0 || sequence >= len(s.times) {
		return time.Time{}
	}
	began := s.times[sequence]
	s.times[sequence] = time.Time{}
	return began
}
