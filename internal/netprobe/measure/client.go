// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"time"

	"github.com/kiln-net/kiln/internal/netprobe/socket"
)

const (
	// timeout bounds the time until a connection is there, and until a server has read what a client wants.
	timeout = 10 * time.Second
	// replyTime is the time after which a datagram without an echo is lost.
	replyTime = time.Second
)

func (m Measurement) dial(mode byte) (*net.TCPConn, error) { return m.dialWithin(mode, timeout) }

// dialWithin connects to the server, selects what it does, and bounds all reads and writes by the end of the measurement.
func (m Measurement) dialWithin(mode byte, timeout time.Duration) (*net.TCPConn, error) {
	conn, err := net.DialTimeout("tcp", m.Address, timeout)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return nil, errors.New("not a TCP connection")
	}
	if err := tcp.SetDeadline(time.Now().Add(m.Duration + patience)); err != nil {
		return nil, fmt.Errorf("set the deadline: %w", err)
	}
	if _, err := tcp.Write(append([]byte(m.Key), mode)); err != nil {
		return nil, fmt.Errorf("select the server's mode: %w", err)
	}
	return tcp, nil
}

// stream sends as much as possible on one connection. The result is the server's count, which excludes bytes in buffers.
func (m Measurement) stream() (r Result, err error) {
	conn, err := m.dial(modeSink)
	if err != nil {
		return r, err
	}
	defer conn.Close()
	buffer := make([]byte, 1<<17)
	began := time.Now()
	for time.Since(began) < m.Duration {
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

// exchanges sends a message and awaits its echo, on one connection.
func (m Measurement) exchanges() (Result, error) {
	conn, err := m.dial(modeEcho)
	if err != nil {
		return Result{}, err
	}
	defer conn.Close()
	message := make([]byte, max(m.Size, 1))
	return m.repeat(func() (bool, error) {
		if _, err := conn.Write(message); err != nil {
			return false, err
		}
		_, err := io.ReadFull(conn, message)
		return true, err
	})
}

// datagrams sends a datagram and awaits its echo.
func (m Measurement) datagrams() (Result, error) {
	conn, err := net.Dial("udp", m.Address)
	if err != nil {
		return Result{}, fmt.Errorf("connect: %w", err)
	}
	defer conn.Close()
	start := append([]byte(m.Key), echoMark...)
	message, answer := make([]byte, max(m.Size, len(start)+8)), make([]byte, largestMessage)
	number := uint64(0)
	return m.repeat(func() (bool, error) {
		number++
		binary.BigEndian.PutUint64(message[copy(message, start):], number)
		if _, err := conn.Write(message); err != nil {
			return false, err
		}
		if err := conn.SetReadDeadline(time.Now().Add(replyTime)); err != nil {
			return false, err
		}
		for {
			n, err := conn.Read(answer)
			switch {
			case errors.Is(err, os.ErrDeadlineExceeded):
				return false, nil
			case err != nil:
				return false, err
			case n == len(message) && binary.BigEndian.Uint64(answer[len(start):]) == number: // and no late echo
				return true, nil
			}
		}
	})
}

// connections opens a connection for each byte. It closes with a reset, so that ports are not used up by connections that wait.
func (m Measurement) connections() (Result, error) {
	one := []byte{0}
	return m.repeat(func() (bool, error) {
		conn, err := m.dial(modeClose)
		if err != nil {
			return false, err
		}
		defer conn.Close()
		if _, err := io.ReadFull(conn, one); err != nil {
			return false, err
		}
		return true, conn.SetLinger(0)
	})
}

// repeat calls f for the duration, and measures each call. f returns false if its packet was lost.
func (m Measurement) repeat(f func() (answered bool, err error)) (Result, error) {
	var took []time.Duration
	began, calls := time.Now(), 0
	for last := began; last.Sub(began) < m.Duration; {
		calls++
		answered, err := f()
		if err != nil {
			return Result{}, fmt.Errorf("exchange %d: %w", calls, err)
		}
		now := time.Now()
		if answered {
			took = append(took, now.Sub(last))
		}
		last = now
	}
	if len(took) == 0 {
		return Result{}, fmt.Errorf("no answer to %d packets", calls)
	}
	rate := float64(len(took)) / time.Since(began).Seconds()
	slices.Sort(took)
	micro := func(of float64) float64 { return float64(took[int(float64(len(took)-1)*of)].Nanoseconds()) / 1000 }
	return Result{Rate: rate, Lost: 1 - float64(len(took))/float64(calls), Median: micro(0.5), P99: micro(0.99)}, nil
}

// smallPacket is the payload of the packets of packets, in bytes.
const smallPacket = 64

// packets sends small UDP packets as fast as possible, and asks how many have arrived.
func (m Measurement) packets() (Result, error) {
	return m.flood(func(*net.UDPConn) (int, error) { return smallPacket, nil })
}

// fullPackets is packets with the largest UDP packets that the path takes without fragments.
func (m Measurement) fullPackets() (Result, error) {
	return m.flood(socket.ForbidFragments)
}

func (m Measurement) flood(size func(*net.UDPConn) (int, error)) (r Result, err error) {
	before, err := m.counted()
	if err != nil {
		return r, err
	}
	to, err := net.ResolveUDPAddr("udp", m.Address)
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
	copy(payload, m.Key)
	began := time.Now()
	for time.Since(began) < m.Duration {
		switch _, err := conn.Write(payload); {
		case err == nil:
			sent++
		case socket.TooLarge(err): // the kernel has learned a smaller MTU of the path, for example behind a translation
			if n, err = size(conn); err != nil {
				return r, fmt.Errorf("find the size of packets: %w", err)
			}
			payload = payload[:min(n, len(payload))]
		} // other refused packets, while a path is set up, are not sent
	}
	took := time.Since(began)
	time.Sleep(200 * time.Millisecond) // packets on their way: nothing says when the last one has arrived
	after, err := m.counted()
	if err != nil {
		return r, err
	}
	if sent == 0 {
		return r, fmt.Errorf("no packet of %d bytes could be sent", n)
	}
	received := min(after-before, sent)
	return Result{Rate: float64(received) / took.Seconds(), Lost: 1 - float64(received)/float64(sent), Size: len(payload)}, nil
}

func (m Measurement) counted() (n uint64, err error) {
	conn, err := m.dial(modeCount)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if err := binary.Read(conn, binary.BigEndian, &n); err != nil {
		return 0, fmt.Errorf("read the server's count: %w", err)
	}
	return n, nil
}
