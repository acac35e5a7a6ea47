// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"testing"
	"time"
)

var start = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func newTestAuthority(t *testing.T) *Authority {
	t.Helper()
	a, err := NewAuthority("kiln-test", start)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func reread(t *testing.T, a *Authority) *Authority {
	t.Helper()
	data, err := a.Data()
	if err != nil {
		t.Fatal(err)
	}
	again, err := ParseAuthority(data)
	if err != nil {
		t.Fatal(err)
	}
	return again
}

func issue(t *testing.T, a *Authority, p Profile, now time.Time) KeyPair {
	t.Helper()
	kp, err := a.Issue(p, now)
	if err != nil {
		t.Fatal(err)
	}
	return kp
}

func leafOf(t *testing.T, kp KeyPair) *x509.Certificate {
	t.Helper()
	p, err := parsePair(kp)
	if err != nil {
		t.Fatal(err)
	}
	return p.certificate
}

func TestMutualTLSByTwoAuthorities(t *testing.T) {
	servers, clients := newTestAuthority(t), newTestAuthority(t)
	server := issue(t, servers, Profile{CommonName: "ovn-nb", DNSNames: []string{"ovn-nb"}, Server: true}, start)
	for _, c := range []struct {
		name       string
		client     KeyPair
		serverName string
		works      bool
	}{
		{"a client of the trusted authority", issue(t, clients, Profile{CommonName: "kube-ovn-controller"}, start), "ovn-nb", true},
		{"a Raft peer, a server as client", issue(t, clients, Profile{CommonName: "ovn-nb", Server: true}, start), "ovn-nb", true},
		{"a client of another authority", issue(t, newTestAuthority(t), Profile{CommonName: "eve"}, start), "ovn-nb", false},
		{"a server of another name", issue(t, clients, Profile{CommonName: "kube-ovn-controller"}, start), "ovn-sb", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			near, far := net.Pipe()
			defer near.Close()
			defer far.Close()
			clock := func() time.Time { return start.Add(time.Minute) }
			serverSide := tls.Server(far, &tls.Config{
				Certificates: []tls.Certificate{keyPair(t, server)}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients.Pool(), Time: clock,
			})
			clientSide := tls.Client(near, &tls.Config{
				Certificates: []tls.Certificate{keyPair(t, c.client)}, RootCAs: servers.Pool(), ServerName: c.serverName, Time: clock,
				MaxVersion: tls.VersionTLS12, // with TLS 1.2, the client sees the server's verdict in the handshake
			})
			refused := make(chan error, 1)
			go func() {
				err := serverSide.Handshake()
				if err != nil {
					far.Close()
				}
				refused <- err
			}()
			err := clientSide.Handshake()
			near.Close()
			if works := err == nil && <-refused == nil; works != c.works {
				t.Errorf("works is %v (%v); want %v", works, err, c.works)
			}
		})
	}
}

func keyPair(t *testing.T, kp KeyPair) tls.Certificate {
	t.Helper()
	c, err := tls.X509KeyPair(kp.Certificate, kp.Key)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func trusts(t *testing.T, bundle []byte, kp KeyPair, now time.Time, what string) {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(bundle)
	_, err := leafOf(t, kp).Verify(x509.VerifyOptions{
		Roots: pool, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		t.Fatalf("%s: %s: %v", now, what, err)
	}
}
