// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/kiln-net/kiln/internal/netprobe/socket"
)

// The server counts what arrives in each second by its own clock: packets and answers may wait in the queue of a limit.

// steadyMark begins the packets of steady; the number of their stream follows.
var steadyMark = []byte("kilnrate")

const (
	// steadyPacket is the payload of a packet of steady, which fits the MTU of pods.
	steadyPacket = 1300
	// settled is the number of seconds at the begin that Rate leaves out: the burst of a limit passes then.
	settled = 3
	// segments is the number of packets that one system call sends or receives with UDP segmentation (UDP_SEGMENT, UDP_GRO in udp(7)): a lab's kernel with slow system
	// calls reaches no rate worth a limit otherwise.
	segments = 16
	// most bounds the seconds of an answer.
	most = 600
	// patience bounds the wait for an answer, behind a full queue of a low limit.
	patience = time.Minute
)

// arrivals has the bytes that arrived in each second since the first.
type arrivals struct {
	began time.Time
	bytes []uint64
}

func (a *arrivals) add(n int) {
	if a.began.IsZero() {
		a.began = time.Now()
	}
	second := int(time.Since(a.began) / time.Second)
	for len(a.bytes) <= second && second < most {
		a.bytes = append(a.bytes, 0)
	}
	if second < most {
		a.bytes[second] += uint64(max(n, 0))
	}
}

func (a *arrivals) write(to io.Writer) error {
	var b bytes.Buffer
	_ = binary.Write(&b, binary.BigEndian, uint16(len(a.bytes))) //nolint:gosec // most bounds it
	_ = binary.Write(&b, binary.BigEndian, a.bytes)
	_, err := to.Write(b.Bytes())
	return err
}

// streams are the UDP streams of a server, by number.
type streams struct {
	mu       sync.Mutex
	byNumber map[uint64]*arrivals
}

// count counts what arrived with a packet, whose bytes after the key are given: also the key, and the packets that the kernel has joined to it.
func (s *streams) count(packet []byte, arrived int) {
	if len(packet) < len(steadyMark)+8 || !bytes.HasPrefix(packet, steadyMark) {
		return
	}
	number := binary.BigEndian.Uint64(packet[len(steadyMark):])
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byNumber == nil {
		s.byNumber = map[uint64]*arrivals{}
	}
	if s.byNumber[number] == nil {
		s.byNumber[number] = &arrivals{}
	}
	s.byNumber[number].add(arrived)
}

// of removes a stream and returns it.
func (s *streams) of(number uint64) *arrivals {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.byNumber[number]
	delete(s.byNumber, number)
	if a == nil {
		return &arrivals{}
	}
	return &arrivals{bytes: slices.Clone(a.bytes)}
}

// readArrivals reads the answer of the server, and computes the rate over the time in which the client sent.
func readArrivals(conn net.Conn, d time.Duration) (r Result, err error) {
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return r, err
	}
	var n uint16
	if err := binary.Read(conn, binary.BigEndian, &n); err != nil {
		return r, fmt.Errorf("read the server's count: %w", err)
	}
	counts := make([]uint64, n)
	if err := binary.Read(conn, binary.BigEndian, counts); err != nil {
		return r, fmt.Errorf("read the server's count: %w", err)
	}
	total := 0.0
	for _, bytes := range counts {
		r.Seconds = append(r.Seconds, float64(bytes)*8)
		total += float64(bytes) * 8
	}
	whole := int(d / time.Second)
	if whole <= 2*settled {
		r.Rate = total / d.Seconds()
		return r, nil
	}
	// The server's clock starts with the first packet, which may wait for the address of a neighbour behind the queue of a limit.
	end := min(whole, max(len(r.Seconds)-1, whole-settled))
	for second := settled; second < min(end, len(r.Seconds)); second++ {
		r.Rate += r.Seconds[second]
	}
	r.Rate /= float64(end - settled)
	return r, nil
}

// steadyFull sends as much as TCP passes on one connection.
func (m Measurement) steadyFull() (r Result, err error) {
	conn, err := m.dial(modeTCP)
	if err != nil {
		return r, err
	}
	defer conn.Close()
	buffer := make([]byte, 1<<14)
	end := time.Now().Add(m.Duration)
	if err := conn.SetWriteDeadline(end); err != nil {
		return r, err
	}
	for time.Now().Before(end) {
		if _, err := conn.Write(buffer); err != nil {
			if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
				break
			}
			return r, fmt.Errorf("send: %w", err)
		}
	}
	if err := conn.CloseWrite(); err != nil {
		return r, fmt.Errorf("end the stream: %w", err)
	}
	return readArrivals(conn, m.Duration)
}

// steady sends UDP packets at a rate.
func (m Measurement) steady() (r Result, err error) {
	conn, err := net.Dial("udp", m.Address)
	if err != nil {
		return r, fmt.Errorf("connect: %w", err)
	}
	defer conn.Close()
	number := rand.Uint64() //nolint:gosec // it tells streams apart, and the key is the secret
	packet := make([]byte, steadyPacket)
	binary.BigEndian.PutUint64(packet[copy(packet, append([]byte(m.Key), steadyMark...)):], number)
	if m.Segmentation {
		if err := socket.SendSegments(conn.(*net.UDPConn), steadyPacket); err != nil {
			return r, err
		}
		packet = bytes.Repeat(packet, segments)
	}
	began, sent := time.Now(), 0.0
	for since := time.Duration(0); since < m.Duration; since = time.Since(began) {
		for due := since.Seconds() * m.Rate; sent <= due; sent += float64(len(packet)) * 8 {
			_, _ = conn.Write(packet) // what the kernel refuses counts as sent
		}
		time.Sleep(2 * time.Millisecond) // the pace of the bursts, of which the rate is made
	}
	asked, err := m.dialWithin(modeUDP, patience)
	if err != nil {
		return r, err
	}
	defer asked.Close()
	if err := binary.Write(asked, binary.BigEndian, number); err != nil {
		return r, fmt.Errorf("ask for the server's count: %w", err)
	}
	if r, err = readArrivals(asked, m.Duration); err == nil && len(r.Seconds) == 0 {
		err = errors.New("no packet arrived")
	}
	arrived := 0.0
	for _, bits := range r.Seconds {
		arrived += bits
	}
	r.Sent, r.Lost = int(sent/8/steadyPacket), max(1-arrived/sent, 0)
	return r, err
}
