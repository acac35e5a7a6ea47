// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// LoadTLS returns a client's configuration from the files tls.crt, tls.key and ca.crt of a directory. It reads them again at
// each handshake, so that the next connection uses a rotated certificate or CA. The server's certificate must be for
// serverName, whatever its address is.
func LoadTLS(dir, serverName string) (*tls.Config, error) {
	files := tlsFiles{dir: dir, serverName: serverName}
	if _, err := files.pair(); err != nil {
		return nil, err
	}
	if _, err := files.authorities(); err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		ServerName: serverName,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return files.pair()
		},
		// Config.RootCAs cannot be changed later. VerifyConnection does the whole verification with the current ca.crt.
		InsecureSkipVerify: true, //nolint:gosec // see above
		VerifyConnection:   files.verify,
	}, nil
}

type tlsFiles struct{ dir, serverName string }

func (f tlsFiles) pair() (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(filepath.Join(f.dir, "tls.crt"), filepath.Join(f.dir, "tls.key"))
	if err != nil {
		return nil, fmt.Errorf("load certificate: %w", err)
	}
	return &pair, nil
}

func (f tlsFiles) authorities() (*x509.CertPool, error) {
	path := filepath.Join(f.dir, "ca.crt")
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("load authorities: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("load authorities: no certificate in %s", path)
	}
	return pool, nil
}

func (f tlsFiles) verify(state tls.ConnectionState) error {
	if len(state.PeerCertificates) == 0 {
		return errors.New("verify server: no certificate")
	}
	roots, err := f.authorities()
	if err != nil {
		return fmt.Errorf("verify server: %w", err)
	}
	intermediates := x509.NewCertPool()
	for _, certificate := range state.PeerCertificates[1:] {
		intermediates.AddCert(certificate)
	}
	_, err = state.PeerCertificates[0].Verify(x509.VerifyOptions{
		DNSName: f.serverName, Roots: roots, Intermediates: intermediates,
	})
	if err != nil {
		return fmt.Errorf("verify server %s: %w", f.serverName, err)
	}
	return nil
}
