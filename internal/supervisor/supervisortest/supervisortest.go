// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package supervisortest gives tests the programs of OVN and Open vSwitch, and certificates for them.
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
	"path/filepath"
	"testing"
	"time"

	"github.com/kiln-net/kiln/internal/eventually"
	"github.com/kiln-net/kiln/internal/prepared"
)

// Program returns how to run a program of the root file system on this machine, whatever its own libraries are.
func Program(t testing.TB, path string) []string {
	t.Helper()
	command, err := prepared.Program(path)
	must(t, err)
	return command
}

// File returns where a file of the root file system is on this machine.
func File(t testing.TB, path string) string {
	t.Helper()
	file, err := prepared.File(filepath.Join("rootfs", path))
	must(t, err)
	return file
}

// RunDir makes a directory for sockets: the name that testing.T.TempDir gives one can be too long for their paths (unix(7)).
func RunDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "run")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	return dir
}

// network is one of the loopback networks, as IPv4 has them.
var network = [2]byte{byte(64 + mathrand.IntN(128)), byte(mathrand.IntN(256))}

// Loopback is an address, from 1 on, of a loopback network that was drawn for this process: processes of tests in other packages, and in other
// checkouts, listen on the same ports beside it.
func Loopback(host byte) netip.Addr {
	return netip.AddrFrom4([4]byte{127, network[0], network[1], host})
}

// Authority signs certificates.
type Authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	PEM         []byte
}

// NewAuthority makes an authority.
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
	must(t, err)
	certificate, err := x509.ParseCertificate(der)
	must(t, err)
	return Authority{certificate: certificate, key: key, PEM: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

// Issue returns a certificate and its key for a common name, which is a DNS name of it as well.
func (a Authority) Issue(t testing.TB, name string) (certificate, key []byte) {
	t.Helper()
	own := newKey(t)
	der, err := x509.MarshalPKCS8PrivateKey(own)
	must(t, err)
	key = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	Secret(key)
	return a.Sign(t, name, own.Public()), key
}

// Sign returns a certificate, valid for an hour, of a public key.
func (a Authority) Sign(t testing.TB, name string, key any) []byte {
	t.Helper()
	return a.SignUntil(t, name, key, time.Now().Add(time.Hour))
}

// SignUntil is Sign for a certificate that was good for two hours until then.
func (a Authority) SignUntil(t testing.TB, name string, key any, until time.Time) []byte {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: until.Add(-2 * time.Hour), NotAfter: until,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key, a.key)
	must(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// TLSDir makes a directory as processes mount it: tls.crt and tls.key of the name, and further files.
func (a Authority) TLSDir(t testing.TB, name string, files map[string][]byte) string {
	t.Helper()
	dir := t.TempDir()
	certificate, key := a.Issue(t, name)
	must(t, os.WriteFile(filepath.Join(dir, "tls.crt"), certificate, 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "tls.key"), key, 0o600))
	for file, content := range files {
		must(t, os.WriteFile(filepath.Join(dir, file), content, 0o600))
	}
	return dir
}

// patience bounds what a test waits for, on a machine with much else to do: the first election after a leader stopped takes up to two
// election timers, and elections in which a member does not get to vote in time are repeated.
const patience = 3 * time.Minute

// Eventually waits until f returns nil.
func Eventually(t testing.TB, what string, f func() error) {
	t.Helper()
	eventually.Wait{For: what, Limit: patience, Pause: 50 * time.Millisecond}.Succeeds(t, f)
}

// Watch makes the waits of a test fail at once when a supervisor ends that runs in a goroutine: its end is in done, which has room for it,
// before ctx is over. The test takes the end from done when it expects one.
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
	must(t, err)
	return key
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
