// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

// port is outside the ephemeral range. Each server listens on a different address; servers counts them.
const port = 6640

var servers int

// server is an ovsdb-server that requires client certificates.
type server struct {
	host string
	dir  string
	// by is the CA of its own certificate.
	by *Authority
}

func serve(t *testing.T, by *Authority, trust []byte) server {
	t.Helper()
	s := server{dir: t.TempDir(), by: by}
	own := issue(t, by, Profile{CommonName: "ovn-nb", DNSNames: []string{"ovn-nb"}, Server: true}, time.Now())
	file := func(name string, content []byte) string {
		path := filepath.Join(s.dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	database, schema := filepath.Join(s.dir, "db"), file("schema", []byte(`{"name":"Test","version":"1.0.0","tables":{}}`))
	argv := append(supervisortest.Program(t, "usr/bin/ovsdb-tool"), "create", database, schema)
	if out, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	servers++
	s.host = fmt.Sprintf("127.0.7.%d", servers)
	argv = append(supervisortest.Program(t, "usr/sbin/ovsdb-server"), database, fmt.Sprintf("--remote=pssl:%d:%s", port, s.host),
		"--private-key="+file("key", own.Key), "--certificate="+file("certificate", own.Certificate), "--ca-cert="+file("trust", trust),
		"--unixctl="+filepath.Join(s.dir, "ctl"), "-vconsole:off", "-vsyslog:off")
	process := exec.Command(argv[0], argv[1:]...)
	process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = process.Process.Kill()
		_ = process.Wait()
	})
	for t.Context().Err() == nil {
		if conn, err := net.Dial("tcp", s.address()); err == nil {
			_ = conn.Close()
			break
		}
	}
	return s
}

func (s server) address() string { return fmt.Sprintf("%s:%d", s.host, port) }

// answers reports whether a client with this certificate and chain completes the handshake and receives a response.
func (s server) answers(t *testing.T, kp KeyPair, chain []byte) bool {
	t.Helper()
	shown, err := tls.X509KeyPair(slices.Concat(kp.Certificate, chain), kp.Key)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := tls.Dial("tcp", s.address(), &tls.Config{
		Certificates: []tls.Certificate{shown}, RootCAs: s.by.Pool(), ServerName: "ovn-nb",
	})
	if err != nil {
		t.Fatalf("the server's certificate: %v", err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(`{"id":1,"method":"list_dbs","params":[]}`)); err != nil {
		return false
	}
	answer := make([]byte, 4096)
	n, err := conn.Read(answer)
	return err == nil && strings.Contains(string(answer[:n]), "Test")
}

// TestOVSDBDistinguishesIssuedAuthorities verifies, with a real server, why bundles contain an anchor instead of the issuer's
// certificate or its root.
func TestOVSDBDistinguishesIssuedAuthorities(t *testing.T) {
	organisation := newIssuer(t)
	now := time.Now()
	organisation.root.certificate.NotBefore, organisation.root.certificate.NotAfter = now.Add(-time.Hour), now.Add(time.Hour)
	root, err := anchor(organisation.root.certificate, organisation.root.key)
	if err != nil {
		t.Fatal(err)
	}
	organisation.root = root
	authority := func() (*Authority, []byte) {
		issued := organisation.issue(must(t, newKey), now, 24*time.Hour)
		p, err := issued.anchor(now)
		if err != nil {
			t.Fatal(err)
		}
		return &Authority{current: p}, issued.chain
	}
	role, chain := authority()
	other, otherChain := authority()
	client, stranger := issue(t, role, Profile{CommonName: "client"}, now), issue(t, other, Profile{CommonName: "stranger"}, now)
	certificate := encodeCertificate(must(t, func() (*Issued, error) {
		return ParseIssued(KeyPair{Certificate: chain, Key: keyOf(t, role)}, now)
	}).certificate.Raw)

	anchored := serve(t, role, role.Bundle())
	if !anchored.answers(t, client, nil) || !anchored.answers(t, client, chain) {
		t.Error("trust in the anchor does not include the role's certificates")
	}
	if anchored.answers(t, stranger, nil) || anchored.answers(t, stranger, otherChain) {
		t.Error("trust in the anchor includes certificates of another role")
	}
	if serve(t, role, certificate).answers(t, client, chain) {
		t.Error("the issuer's certificate suffices: the anchor is not needed")
	}
	if !serve(t, role, encodeCertificate(organisation.root.certificate.Raw)).answers(t, stranger, otherChain) {
		t.Error("trust in the issuer's root distinguishes roles: the anchor is not needed")
	}
	speaksTo(t, anchored, client)
}

func keyOf(t *testing.T, a *Authority) []byte {
	t.Helper()
	data, err := a.Data()
	if err != nil {
		t.Fatal(err)
	}
	return data[PrivateKeyKey]
}

// speaksTo makes one of OVS's own clients verify the server.
func speaksTo(t *testing.T, s server, client KeyPair) {
	t.Helper()
	for name, content := range map[string][]byte{"c.key": client.Key, "c.crt": client.Certificate, "c.ca": s.by.Bundle()} {
		if err := os.WriteFile(filepath.Join(s.dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	argv := append(supervisortest.Program(t, "usr/bin/ovsdb-client"), "--private-key="+filepath.Join(s.dir, "c.key"),
		"--certificate="+filepath.Join(s.dir, "c.crt"), "--ca-cert="+filepath.Join(s.dir, "c.ca"), "--timeout=30",
		"list-dbs", "ssl:"+s.address())
	if out, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).CombinedOutput(); err != nil {
		t.Errorf("ovsdb-client: %v: %s", err, out)
	}
}
