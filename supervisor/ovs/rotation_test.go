// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

// mountAnew replaces the files of a directory and returns the serial number of the new certificate. It replaces the certificate
// before the key: a daemon reads both when the key changes, and ignores a later change of the certificate (lib/stream-ssl.c). A
// kubelet replaces all files at once.
func mountAnew(t *testing.T, directory string, by supervisortest.Authority, until time.Time, trust []byte) string {
	t.Helper()
	key := must.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	certificate := by.SignUntil(t, "server", key.Public(), until)
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must.Value(x509.MarshalPKCS8PrivateKey(key))})
	for _, f := range []struct {
		name    string
		content []byte
	}{{"ca.crt", trust}, {"tls.crt", certificate}, {"tls.key", keyPEM}} {
		path := filepath.Join(directory, f.name)
		must.Succeed(t, os.WriteFile(path+".new", f.content, 0o600))
		must.Succeed(t, os.Chtimes(path+".new", time.Now(), time.Now())) // the kernel's own timestamp has only the resolution of a tick
		must.Succeed(t, os.Rename(path+".new", path))
	}
	block, _ := pem.Decode(certificate)
	return must.Value(x509.ParseCertificate(block.Bytes)).SerialNumber.String()
}

// ask sends an echo request (ovsdb-server(7)) and reads the response.
func ask(conn *tls.Conn) error {
	const echo = `{"id":1,"method":"echo","params":["still here"]}`
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte(echo)); err != nil {
		return err
	}
	buffer := make([]byte, 4096)
	n, err := conn.Read(buffer)
	if err == nil && !bytes.Contains(buffer[:n], []byte("still here")) {
		err = fmt.Errorf("it says %s", buffer[:n])
	}
	return err
}

// TestRotationKeepsConnections replaces the certificate of a real server, then its CA, and then recovers from an expired
// certificate.
func TestRotationKeepsConnections(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	nodetest.Wire(t)
	c := startCentral(t)
	next := supervisortest.NewAuthority(t, "next")
	trustBoth := slices.Concat(c.servers.PEM, next.PEM)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(trustBoth)
	dial := func(by supervisortest.Authority) (*tls.Conn, string, error) {
		certificate, key := by.Issue(t, "client")
		conn, err := tls.Dial("tcp", "127.0.0.1:6641", &tls.Config{
			RootCAs: pool, ServerName: "server", Certificates: []tls.Certificate{must.Value(tls.X509KeyPair(certificate, key))},
		})
		if err != nil {
			return nil, "", err
		}
		return conn, conn.ConnectionState().PeerCertificates[0].SerialNumber.String(), ask(conn)
	}
	serves := func(by supervisortest.Authority, serial string) {
		t.Helper()
		supervisortest.Eventually(t, "new connections get the new certificate", func() error {
			conn, got, err := dial(by)
			if err == nil && got != serial {
				err = fmt.Errorf("got %s, want %s", got, serial)
			}
			if conn != nil {
				err = errors.Join(err, conn.Close())
			}
			return err
		})
	}
	old, _, err := dial(c.servers)
	must.Succeed(t, err)
	defer old.Close()
	later := time.Now().Add(time.Hour)

	serves(c.servers, mountAnew(t, c.tls, c.servers, later, c.servers.PEM))
	serves(c.servers, mountAnew(t, c.tls, c.servers, later, trustBoth))
	serves(next, mountAnew(t, c.tls, next, later, trustBoth))
	serves(next, mountAnew(t, c.tls, next, later, next.PEM))
	supervisortest.Eventually(t, "clients of the old authority are refused", func() error {
		conn, _, err := dial(c.servers)
		if err == nil {
			return errors.Join(errors.New("served"), conn.Close())
		}
		return nil
	})
	mountAnew(t, c.tls, next, time.Now().Add(-time.Minute), next.PEM)
	supervisortest.Eventually(t, "an expired certificate is refused", func() error {
		_, _, err := dial(next)
		if !errors.As(err, new(x509.CertificateInvalidError)) && !errors.As(err, new(*tls.CertificateVerificationError)) {
			return fmt.Errorf("got %w", err)
		}
		return nil
	})
	serves(next, mountAnew(t, c.tls, next, later, next.PEM))
	if err := ask(old); err != nil {
		t.Errorf("the earlier connection was lost: %v", err)
	}
}
