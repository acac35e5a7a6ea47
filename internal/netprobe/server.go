// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package netprobe checks with packets whether one pod reaches another: a server that answers with its name, and a client that expects its answer, or
// that there is none. `kubectl ko test` runs both in pods.
package netprobe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"golang.org/x/net/netutil"
)

const (
	// nameHeader is the header with the name of the server that answers.
	nameHeader = "Kiln-Netprobe"
	// largestBody and largestDatagram bound the requests to the server.
	largestBody, largestDatagram = 1 << 20, 1500
	// largestConnections is the number of connections of a server at a time.
	largestConnections = 128
	// callTimeout bounds one request to the server.
	callTimeout = 10 * time.Second
)

// Listen listens with TCP and UDP at an address. Further connections wait while there are largestConnections.
func Listen(ctx context.Context, address string) (net.Listener, net.PacketConn, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, nil, fmt.Errorf("listen: %w", err)
	}
	packets, err := (&net.ListenConfig{}).ListenPacket(ctx, "udp", listener.Addr().String())
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("listen: %w", err), listener.Close())
	}
	return netutil.LimitListener(listener, largestConnections), packets, nil
}

// Serve answers HTTP requests and datagrams at a port of all addresses, with the name and their content, until ctx ends.
func Serve(ctx context.Context, address, name string) error {
	listener, packets, err := Listen(ctx, address)
	if err != nil {
		return err
	}
	defer listener.Close()
	defer packets.Close()
	server := &http.Server{Handler: echo(name), ReadTimeout: callTimeout, WriteTimeout: callTimeout}
	failed := make(chan error, 2)
	go func() { failed <- server.Serve(listener) }()
	go func() { failed <- echoDatagrams(packets, name) }()
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	return errors.Join(err, server.Close())
}

func echo(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(nameHeader, name)
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, largestBody))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		_, _ = w.Write(body)
	}
}

// echoDatagrams answers a datagram with the name, a line feed, and its content without padding (zero bytes). An answer, which has a line feed, gets none: two servers would answer each other for ever.
func echoDatagrams(packets net.PacketConn, name string) error {
	buffer := make([]byte, largestDatagram)
	for {
		n, from, err := packets.ReadFrom(buffer)
		if err != nil {
			return fmt.Errorf("read a datagram: %w", err)
		}
		if bytes.ContainsRune(buffer[:n], '\n') {
			continue
		}
		content, _, _ := bytes.Cut(buffer[:n], []byte{0})
		// A reply that cannot be sent is lost like others: the client sends another datagram.
		_, _ = packets.WriteTo(bytes.Join([][]byte{[]byte(name), content}, []byte("\n")), from)
	}
}
