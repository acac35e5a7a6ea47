// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package nbtest

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kiln-net/kiln/internal/serving/pki"
)

// TLS holds the certificates with which a client and servers connect over a network.
type TLS struct {
	// Dir is a certificate directory as processes mount it: the client's tls.crt and tls.key, and the servers' CA in ca.crt.
	Dir string

	server tls.Config
}

// NewTLS issues certificates for servers and a client with these names.
func NewTLS(t testing.TB, server, client string) *TLS {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now()
	servers, err := pki.NewAuthority("nb-server", now)
	must(err)
	clients, err := pki.NewAuthority("nb-client", now)
	must(err)
	serverPair, err := servers.Issue(pki.Profile{CommonName: server, DNSNames: []string{server}, Server: true}, now)
	must(err)
	clientPair, err := clients.Issue(pki.Profile{CommonName: client}, now)
	must(err)
	c := &TLS{Dir: t.TempDir()}
	for name, content := range map[string][]byte{"tls.crt": clientPair.Certificate, "tls.key": clientPair.Key, "ca.crt": servers.Bundle()} {
		must(os.WriteFile(filepath.Join(c.Dir, name), content, 0o600))
	}
	pair, err := tls.X509KeyPair(serverPair.Certificate, serverPair.Key)
	must(err)
	c.server = tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients.Pool(),
	}
	return c
}

// Listen makes a server accept TLS connections at an address as well, until the test ends or stop is called.
func (c *TLS) Listen(t testing.TB, address string, s *Server) (stop func()) {
	t.Helper()
	listener, err := tls.Listen("tcp", address, &c.server)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go join(ctx, conn, s.socket())
		}
	}()
	stop = func() {
		cancel()
		_ = listener.Close()
	}
	t.Cleanup(stop)
	return stop
}

// join copies between a connection and a Unix socket until either ends.
func join(ctx context.Context, conn net.Conn, socket string) {
	backend, err := net.Dial("unix", socket)
	if err != nil {
		_ = conn.Close()
		return
	}
	end := func() {
		_ = conn.Close()
		_ = backend.Close()
	}
	stop := context.AfterFunc(ctx, end)
	defer stop()
	go func() {
		defer end()
		_, _ = io.Copy(backend, conn)
	}()
	defer end()
	_, _ = io.Copy(conn, backend)
}
