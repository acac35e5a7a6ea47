// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package tlsdir makes TLS configurations from a directory with files of a Secret: tls.crt, tls.key and the CAs to trust. They read the files again at
// each handshake, so that the next connection uses a rotated certificate or CA.
package tlsdir

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// authorityFile has the CAs of the servers that a client trusts.
const authorityFile = "ca.crt"

// Client returns the configuration of a client. The server's certificate must be for serverName, whatever its address is, and of a CA in ca.crt. It
// is an error if the files cannot be used now.
func Client(dir, serverName string) (*tls.Config, error) {
	if _, err := pair(dir); err != nil {
		return nil, err
	}
	if _, err := authorities(dir, authorityFile); err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		ServerName: serverName,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return pair(dir)
		},
		// Config.RootCAs cannot be changed later. VerifyConnection does the whole verification with the current ca.crt.
		InsecureSkipVerify: true, //nolint:gosec // see above
		VerifyConnection:   func(state tls.ConnectionState) error { return verify(state, dir, serverName) },
	}, nil
}

// Server returns the configuration of a server whose clients must have a certificate of a CA in the file clients. Without usable files handshakes
// fail.
func Server(dir, clients string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			certificate, err := pair(dir)
			if err != nil {
				return nil, err
			}
			pool, err := authorities(dir, clients)
			if err != nil {
				return nil, err
			}
			return &tls.Config{
				MinVersion:   tls.VersionTLS13,
				Certificates: []tls.Certificate{*certificate},
				ClientAuth:   tls.RequireAndVerifyClientCert,
				ClientCAs:    pool,
			}, nil
		},
	}
}

func pair(dir string) (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
	if err != nil {
		return nil, fmt.Errorf("load certificate: %w", err)
	}
	return &pair, nil
}

func authorities(dir, file string) (*x509.CertPool, error) {
	path := filepath.Join(dir, file)
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

func verify(state tls.ConnectionState, dir, serverName string) error {
	if len(state.PeerCertificates) == 0 {
		return errors.New("verify server: no certificate")
	}
	roots, err := authorities(dir, authorityFile)
	if err != nil {
		return fmt.Errorf("verify server: %w", err)
	}
	intermediates := x509.NewCertPool()
	for _, certificate := range state.PeerCertificates[1:] {
		intermediates.AddCert(certificate)
	}
	_, err = state.PeerCertificates[0].Verify(x509.VerifyOptions{DNSName: serverName, Roots: roots, Intermediates: intermediates})
	if err != nil {
		return fmt.Errorf("verify server %s: %w", serverName, err)
	}
	return nil
}
