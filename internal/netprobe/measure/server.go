// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/kiln-net/kiln/internal/netprobe"
	"github.com/kiln-net/kiln/internal/netprobe/socket"
)

// The first byte of a TCP connection, after the key, selects what the server does with it.
const (
	modeSink  = 's' // read everything, then answer with the number of bytes
	modeEcho  = 'e' // answer with what arrives
	modeClose = 'c' // answer with one byte and close
	modeCount = 'n' // answer with the number of UDP packets since the start
	modeTCP   = 't' // read everything, then answer with the arrivals
	modeUDP   = 'u' // read the number of a stream of UDP packets, then answer with its arrivals
)

// A datagram that begins with echoMark, after the key, is sent back with backMark instead, so that two servers never answer one another.
var echoMark, backMark = []byte("kilnecho"), []byte("kilnback")

// Server is the other end of measurements.
type Server struct {
	// Key precedes what clients send on each connection and in each packet; the server ignores everything else. It may be empty.
	Key string
	// Segmentation receives several UDP packets at a time.
	Segmentation bool

	packets atomic.Uint64
	streams streams
}

// Serve serves TCP and UDP at addresses, until one fails or ctx ends.
func (s *Server) Serve(ctx context.Context, addresses ...string) error {
	failed := make(chan error, len(addresses))
	for _, address := range addresses {
		listener, packets, err := netprobe.Listen(ctx, address)
		if err != nil {
			return err
		}
		defer listener.Close()
		defer packets.Close()
		if s.Segmentation {
			if err := socket.ReceiveSegments(packets.(*net.UDPConn)); err != nil {
				return err
			}
		}
		// Some seconds of packets wait: a burst that a limit passes is not to be lost after it.
		if err := socket.Buffer(packets.(*net.UDPConn), 1<<24); err != nil {
			return err
		}
		go s.count(packets)
		go func() { failed <- s.accept(listener) }()
	}
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return nil
	}
}

// count counts packets, and answers those that want an echo.
func (s *Server) count(packets net.PacketConn) {
	buffer := make([]byte, 1<<16)
	for {
		n, from, err := packets.ReadFrom(buffer)
		if err != nil {
			return
		}
		packet, is := bytes.CutPrefix(buffer[:n], []byte(s.Key))
		switch {
		case !is:
		case bytes.HasPrefix(packet, echoMark):
			copy(packet, backMark)
			_, _ = packets.WriteTo(buffer[:n], from) // an echo that cannot be sent is lost like others
		default:
			s.packets.Add(1)
			s.streams.count(packet, n)
		}
	}
}

func (s *Server) accept(listener net.Listener) error {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		go func() {
			defer conn.Close()
			s.handle(conn)
		}()
	}
}

func (s *Server) handle(conn net.Conn) {
	begin := make([]byte, len(s.Key)+1)
	if err := conn.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return
	}
	if _, err := io.ReadFull(conn, begin); err != nil || string(begin[:len(s.Key)]) != s.Key {
		return
	}
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return
	}
	mode := begin[len(s.Key):]
	switch mode[0] {
	case modeSink:
		n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{conn}, make([]byte, 1<<17))
		if err == nil || errors.Is(err, io.EOF) {
			_ = binary.Write(conn, binary.BigEndian, n)
		}
	case modeEcho:
		_, _ = io.CopyBuffer(struct{ io.Writer }{conn}, struct{ io.Reader }{conn}, make([]byte, 1<<16))
	case modeClose:
		_, _ = conn.Write(mode)
	case modeTCP:
		var a arrivals
		buffer := make([]byte, 1<<16)
		for {
			n, err := conn.Read(buffer)
			a.add(n)
			if err != nil {
				break
			}
		}
		_ = a.write(conn)
	case modeUDP:
		var number uint64
		if binary.Read(conn, binary.BigEndian, &number) == nil {
			_ = s.streams.of(number).write(conn)
		}
	case modeCount:
		_ = binary.Write(conn, binary.BigEndian, s.packets.Load())
	}
}
