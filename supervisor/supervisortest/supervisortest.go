// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package supervisortest provides tests with the programs of OVN and Open vSwitch, and with certificates for them.
package supervisortest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	mathrand "math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/prepared"
)

// Program returns the command line that runs a program of the root file system on this machine, independent of the machine's
// libraries.
func Program(t testing.TB, path string) []string {
	t.Helper()
	command, err := prepared.Program(path)
	must.Succeed(t, err)
	return command
}

// CreateSwitchDatabase creates an empty database of Open vSwitch with ovsdb-tool(1), because no library does.
func CreateSwitchDatabase(t testing.TB, file string) {
	t.Helper()
	line := append(Program(t, "usr/bin/ovsdb-tool"), "create", file, File(t, "usr/share/openvswitch/vswitch.ovsschema"))
	if out, err := exec.Command(line[0], line[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("create %s: %v\n%s", file, err, out)
	}
}

// File returns the path on this machine of a file of the root file system.
func File(t testing.TB, path string) string {
	t.Helper()
	file, err := prepared.File(filepath.Join(prepared.Root, path))
	must.Succeed(t, err)
	return file
}

// RunDir makes a directory for sockets. The path of testing.T.TempDir can exceed the length limit of socket paths (unix(7)).
func RunDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "run")
	must.Succeed(t, err)
	t.Cleanup(func() { must.Succeed(t, os.RemoveAll(dir)) })
	return dir
}

// network is the second and third byte of a random network inside 127.0.0.0/8.
var network = [2]byte{byte(64 + mathrand.IntN(128)), byte(mathrand.IntN(256))}

// Loopback returns the address with this host number (from 1) in the process's random loopback network. Test processes of other
// packages and other checkouts listen on the same ports at the same time.
func Loopback(host byte) netip.Addr {
	return netip.AddrFrom4([4]byte{127, network[0], network[1], host})
}

// Authority is a CA for tests.
type Authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	PEM         []byte
}

// NewAuthority makes a CA.
func NewAuthority(t testing.TB, name string) Authority {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must.Succeed(t, err)
	certificate, err := x509.ParseCertificate(der)
	must.Succeed(t, err)
	return Authority{certificate: certificate, key: key, PEM: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

// Issue returns a certificate and its key for a common name, which is also the certificate's DNS name.
func (a Authority) Issue(t testing.TB, name string) (certificate, key []byte) {
	t.Helper()
	own := newKey(t)
	der, err := x509.MarshalPKCS8PrivateKey(own)
	must.Succeed(t, err)
	key = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	Secret(key)
	return a.Sign(t, name, own.Public()), key
}

// Sign returns a certificate for a public key. It is valid for one hour.
func (a Authority) Sign(t testing.TB, name string, key any) []byte {
	t.Helper()
	return a.SignUntil(t, name, key, time.Now().Add(time.Hour))
}

// SignUntil is Sign with a certificate that is valid for two hours and expires at until.
func (a Authority) SignUntil(t testing.TB, name string, key any, until time.Time) []byte {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: until.Add(-2 * time.Hour), NotAfter: until,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key, a.key)
	must.Succeed(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// TLSDir makes a directory like the one that processes mount: tls.crt and tls.key for the name, and additional files.
func (a Authority) TLSDir(t testing.TB, name string, files map[string][]byte) string {
	t.Helper()
	dir := t.TempDir()
	certificate, key := a.Issue(t, name)
	must.Succeed(t, os.WriteFile(filepath.Join(dir, "tls.crt"), certificate, 0o600))
	must.Succeed(t, os.WriteFile(filepath.Join(dir, "tls.key"), key, 0o600))
	for file, content := range files {
		must.Succeed(t, os.WriteFile(filepath.Join(dir, file), content, 0o600))
	}
	return dir
}

// patience bounds the waits of a test on a busy machine. The first election after a leader stops takes up to two election
// timers, and an election is repeated if a member does not vote in time.
const patience = 3 * time.Minute

// Eventually waits until f returns nil.
func Eventually(t testing.TB, what string, f func() error) {
	t.Helper()
	eventually.Wait{For: what, Limit: patience, Pause: 50 * time.Millisecond}.Succeeds(t, f)
}

// Watch makes the waits of a test fail at once when a supervisor that runs in a goroutine ends before ctx does. The supervisor
// sends its result to done, which must be buffered. A test that expects the end receives it from done itself.
func Watch(ctx context.Context, t testing.TB, what string, done chan error) {
	t.Helper()
	eventually.Watch(t, func() error {
		if ctx.Err() != nil {
			return nil
		}
		select {
		case err := <-done:
			done <- err
			return fmt.Errorf("%s has ended: %w", what, err)
		default:
			return nil
		}
	})
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.Succeed(t, err)
	return key
}

// ConsoleLevel returns the level of the log on standard error that all modules of a daemon have, from its answer to vlog/list (ovs-appctl(8)).
func ConsoleLevel(list string) (string, error) {
	common := ""
	for line := range strings.Lines(list) {
		fields := strings.Fields(line)
		if len(fields) != 4 { // the heading, and a line below it
			continue
		}
		if level := strings.ToLower(fields[1]); common == "" {
			common = level
		} else if level != common {
			return "", fmt.Errorf("module %s has the level %s, others have %s", fields[0], level, common)
		}
	}
	return common, nil
}
