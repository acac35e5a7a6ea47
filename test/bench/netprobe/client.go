// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Result is a measurement. Rate is per second: bits for stream; exchanges for rr; connections for crr; packets received for packets and full; bits that
// arrived after the first 3 s for steady and steady-full.
type Result struct {
	Rate float64 `json:"rate"`
	// Lost is the part of packets that did not arrive.
	Lost float64 `json:"lost,omitempty"`
	// Median and P99 are times of an exchange or a connection in microseconds.
	Median float64 `json:"medianMicroseconds,omitempty"`
	P99    float64 `json:"p99Microseconds,omitempty"`
	// Seconds has the bits that arrived in each second since the first packet, for steady and steady-full.
	Seconds []float64 `json:"seconds,omitempty"`
}

var measurements = map[string]func(address string, d time.Duration) (Result, error){
	"stream": stream, "rr": exchanges, "crr": connections, "packets": packets, "full": fullPackets,
	"steady-full": steadyFull,
}

const timeout = 10 * time.Second

func dial(address string, mode byte) (*net.TCPConn, error) { return dialWithin(address, mode, timeout) }

func dialWithin(address string, mode byte, timeout time.Duration) (*net.TCPConn, error) {
	conn, err := net.DialTimeout("tcp", address, timeout)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return nil, errors.New("not a TCP connection")
	}
	if _, err := tcp.Write([]byte{mode}); err != nil {
		return nil, fmt.Errorf("select the server's mode: %w", err)
	}
	return tcp, nil
}

// stream sends as much as possible on one connection. The result is the server's count, which excludes bytes in buffers.
func stream(address string, d time.Duration) (r Result, err error) {
	conn, err := dial(address, modeSink)
	if err != nil {
		return r, err
	}
	defer conn.Close()
	buffer := make([]byte, 1<<17)
	began := time.Now()
	for time.Since(began) < d {
		if _, err := conn.Write(buffer); err != nil {
			return r, fmt.Errorf("send: %w", err)
		}
	}
	if err := conn.CloseWrite(); err != nil {
		return r, fmt.Errorf("end the stream: %w", err)
	}
	var received uint64
	if err := binary.Read(conn, binary.BigEndian, &received); err != nil {
		return r, fmt.Errorf("read the server's count: %w", err)
	}
	r.Rate = float64(received) * 8 / time.Since(began).Seconds()
	return r, nil
}

// exchanges sends a byte and awaits the answer, on one connection.
func exchanges(address string, d time.Duration) (Result, error) {
	conn, err := dial(address, modeEcho)
	if err != nil {
		return Result{}, err
	}
	defer conn.Close()
	one := []byte{0}
	return repeat(d, func() error {
		if _, err := conn.Write(one); err != nil {
			return err
		}
		_, err := io.ReadFull(conn, one)
		return err
	})
}

// connections opens a connection for each byte. It closes with a reset, so that ports are not used up by connections that wait.
func connections(address string, d time.Duration) (Result, error) {
	one := []byte{0}
	return repeat(d, func() error {
		conn, err := dial(address, modeClose)
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := io.ReadFull(conn, one); err != nil {
			return err
		}
		return conn.SetLinger(0)
	})
}

// repeat calls f for a duration, and measures each call.
func repeat(d time.Duration, f func() error) (Result, error) {
	var took []time.Duration
	began := time.Now()
	for last := began; last.Sub(began) < d; {
		if err := f(); err != nil {
			return Result{}, fmt.Errorf("exchange %d: %w", len(took)+1, err)
		}
		now := time.Now()
		took = append(took, now.Sub(last))
		last = now
	}
	rate := float64(len(took)) / time.Since(began).Seconds()
	slices.Sort(took)
	micro := func(of float64) float64 { return float64(took[int(float64(len(took)-1)*of)].Nanoseconds()) / 1000 }
	return Result{Rate: rate, Median: micro(0.5), P99: micro(0.99)}, nil
}

// smallPacket is the payload of the packets of packets, in bytes.
const smallPacket = 64

// packets sends small UDP packets as fast as possible, and asks how many have arrived.
func packets(address string, d time.Duration) (Result, error) {
	return flood(address, d, func(*net.UDPConn) (int, error) { return smallPacket, nil })
}

// fullPackets is packets with the largest UDP packets that the path takes without fragments.
func fullPackets(address string, d time.Duration) (Result, error) {
	return flood(address, d, forbidFragments)
}

func flood(address string, d time.Duration, size func(*net.UDPConn) (int, error)) (r Result, err error) {
	before, err := counted(address)
	if err != nil {
		return r, err
	}
	to, err := net.ResolveUDPAddr("udp", address)
	if err != nil {
		return r, fmt.Errorf("read the address: %w", err)
	}
	conn, err := net.DialUDP("udp", nil, to)
	if err != nil {
		return r, fmt.Errorf("connect: %w", err)
	}
	defer conn.Close()
	n, err := size(conn)
	if err != nil {
		return r, fmt.Errorf("find the size of packets: %w", err)
	}
	payload, sent := make([]byte, n), uint64(0)
	began := time.Now()
	for time.Since(began) < d {
		switch _, err := conn.Write(payload); {
		case err == nil:
			sent++
		case errors.Is(err, unix.EMSGSIZE): // the kernel has learned a smaller MTU of the path, for example behind a translation
			if n, err = size(conn); err != nil {
				return r, fmt.Errorf("find the size of packets: %w", err)
			}
			payload = payload[:min(n, len(payload))]
		} // other refused packets, while a path is set up, are not sent
	}
	took := time.Since(began)
	time.Sleep(200 * time.Millisecond) // packets on their way
	after, err := counted(address)
	if err != nil {
		return r, err
	}
	if sent == 0 {
		return r, fmt.Errorf("no packet of %d bytes could be sent", n)
	}
	received := min(after-before, sent)
	return Result{Rate: float64(received) / took.Seconds(), Lost: 1 - float64(received)/float64(sent)}, nil
}

// forbidFragments makes the kernel refuse packets that are too large for the path (IP_MTU_DISCOVER, ip(7)). It returns the largest payload.
func forbidFragments(conn *net.UDPConn) (payload int, err error) {
	const headerIPv4, headerIPv6, headerUDP, largest = 20, 40, 8, 65507
	level, discover, get, header := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_MTU, headerIPv4
	if to, ok := conn.RemoteAddr().(*net.UDPAddr); ok && to.IP.To4() == nil {
		level, discover, get, header = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_MTU, headerIPv6
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	mtu, socketErr := 0, error(nil)
	err = raw.Control(func(fd uintptr) {
		if socketErr = unix.SetsockoptInt(int(fd), level, discover, unix.IP_PMTUDISC_DO); socketErr == nil {
			mtu, socketErr = unix.GetsockoptInt(int(fd), level, get)
		}
	})
	return min(mtu-header-headerUDP, largest), errors.Join(err, socketErr)
}

func counted(address string) (n uint64, err error) {
	conn, err := dial(address, modeCount)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if err := binary.Read(conn, binary.BigEndian, &n); err != nil {
		return 0, fmt.Errorf("read the server's count: %w", err)
	}
	return n, nil
}
