// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// The first byte of a TCP connection selects what the server does with it.
const (
	modeSink  = 's' // read everything, then answer with the number of bytes
	modeEcho  = 'e' // answer each byte with one
	modeClose = 'c' // answer with one byte and close
	modeCount = 'n' // answer with the number of UDP packets since the start
	modeTCP   = 't' // read everything, then answer with the arrivals
	modeUDP   = 'u' // read the number of a stream of UDP packets, then answer with its arrivals
)

// serve serves TCP and UDP on consecutive ports until one fails.
func serve(port, number string, segmentation bool) error {
	first, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return fmt.Errorf("the port: %w", err)
	}
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil {
		return fmt.Errorf("the number of ports: %w", err)
	}
	s, failed := &server{}, make(chan error)
	for i := range n {
		address := fmt.Sprintf(":%d", first+i)
		listener, err := net.Listen("tcp", address)
		if err != nil {
			return fmt.Errorf("listen: %w", err)
		}
		packets, err := net.ListenPacket("udp", address)
		if err != nil {
			return fmt.Errorf("listen: %w", err)
		}
		if segmentation {
			if err := segmented(packets, unix.UDP_GRO, 1); err != nil {
				return err
			}
		}
		if err := buffered(packets); err != nil {
			return err
		}
		go s.count(packets)
		go func() { failed <- s.accept(listener) }()
	}
	return <-failed
}

type server struct {
	packets atomic.Uint64
	streams streams
}

func (s *server) count(packets net.PacketConn) {
	buffer := make([]byte, 1<<16)
	for {
		n, _, err := packets.ReadFrom(buffer)
		if err != nil {
			return
		}
		s.packets.Add(1)
		s.streams.count(buffer[:n])
	}
}

func (s *server) accept(listener net.Listener) error {
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

func (s *server) handle(conn net.Conn) {
	mode := make([]byte, 1)
	if _, err := io.ReadFull(conn, mode); err != nil {
		return
	}
	switch mode[0] {
	case modeSink:
		n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{conn}, make([]byte, 1<<17))
		if err == nil || errors.Is(err, io.EOF) {
			_ = binary.Write(conn, binary.BigEndian, uint64(n))
		}
	case modeEcho:
		_, _ = io.CopyBuffer(struct{ io.Writer }{conn}, struct{ io.Reader }{conn}, make([]byte, 1))
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
