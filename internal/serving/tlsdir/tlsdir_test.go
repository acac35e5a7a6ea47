// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package tlsdir

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// authority issues certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t}
	a.key, a.cert = a.sign(&x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

func (a *authority) sign(template *x509.Certificate) (*ecdsa.PrivateKey, *x509.Certificate) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.Subject = pkix.Name{CommonName: "test"}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := template, key
	if a.cert != nil {
		parent, signer = a.cert, a.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return key, cert
}

// files writes a certificate for a name, its key, and the CA to trust.
func (a *authority) files(dir, name string, trust *authority) {
	a.t.Helper()
	key, cert := a.sign(&x509.Certificate{DNSNames: []string{name}})
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		"tls.key": {Type: "PRIVATE KEY", Bytes: der},
		"tls.crt": {Type: "CERTIFICATE", Bytes: cert.Raw},
		"ca.crt":  {Type: "CERTIFICATE", Bytes: trust.cert.Raw},
	} {
		if err := os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(block), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
}

// handshake connects to a server of one CA that trusts clients of another.
func handshake(t *testing.T, config *tls.Config, servers, clients *authority, name string) error {
	t.Helper()
	key, cert := servers.sign(&x509.Certificate{DNSNames: []string{name}})
	pool := x509.NewCertPool()
	pool.AddCert(clients.cert)
	return exchange(t, &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}},
		ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: pool,
	}, config)
}

// exchange reads a byte from a server.
func exchange(t *testing.T, serve, config *tls.Config) error {
	t.Helper()
	listener, err := tls.Listen("tcp", "127.0.0.1:0", serve)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		server, err := listener.Accept()
		if err != nil {
			return
		}
		defer server.Close()
		_, _ = server.Write([]byte("x")) // Write does the handshake first
	}()
	client, err := tls.Dial("tcp", listener.Addr().String(), config)
	if err != nil {
		return err
	}
	defer client.Close()
	_, err = client.Read(make([]byte, 1)) // with TLS 1.3 the client gets a refusal only when it reads
	return err
}

func TestAClientVerifiesByTodaysFiles(t *testing.T) {
	servers, clients, others := newAuthority(t), newAuthority(t), newAuthority(t)
	dir := t.TempDir()
	clients.files(dir, "controller", servers)
	config, err := Client(dir, "ovn-nb")
	if err != nil {
		t.Fatal(err)
	}
	if err := handshake(t, config, servers, clients, "ovn-nb"); err != nil {
		t.Errorf("the right server: %v", err)
	}
	if err := handshake(t, config, servers, clients, "ovn-sb"); err == nil {
		t.Error("a server of another name was accepted")
	}
	if err := handshake(t, config, others, clients, "ovn-nb"); err == nil {
		t.Error("a server of another authority was accepted")
	}
	if err := handshake(t, config, servers, others, "ovn-nb"); err == nil {
		t.Error("a client of another authority was accepted")
	}
	others.files(dir, "controller", others)
	if err := handshake(t, config, others, others, "ovn-nb"); err != nil {
		t.Errorf("after rotation of all: %v", err)
	}
}

func TestAClientNeedsItsFiles(t *testing.T) {
	dir := t.TempDir()
	if _, err := Client(dir, "ovn-nb"); err == nil {
		t.Error("no files, no error")
	}
	a := newAuthority(t)
	a.files(dir, "controller", a)
	if err := os.WriteFile(filepath.Join(dir, "ca.crt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Client(dir, "ovn-nb"); err == nil {
		t.Error("no authority, no error")
	}
}

func TestAServerVerifiesByTodaysFiles(t *testing.T) {
	servers, clients, others := newAuthority(t), newAuthority(t), newAuthority(t)
	dir, caller := t.TempDir(), t.TempDir()
	servers.files(dir, "member", clients)
	clients.files(caller, "operator", servers)
	config, err := Client(caller, "member")
	if err != nil {
		t.Fatal(err)
	}
	server := Server(dir, "ca.crt")
	connect := func() error { return exchange(t, server, config) }
	if err := connect(); err != nil {
		t.Errorf("the right client: %v", err)
	}
	servers.files(dir, "member", others)
	if err := connect(); err == nil {
		t.Error("a client of an authority that is no longer trusted was accepted")
	}
	if err := os.Remove(filepath.Join(dir, "ca.crt")); err != nil {
		t.Fatal(err)
	}
	if err := connect(); err == nil {
		t.Error("a server without the authority of its clients accepted one")
	}
}
