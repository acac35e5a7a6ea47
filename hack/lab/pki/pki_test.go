// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto/tls"
	"crypto/x509"
	"net/netip"
	"testing"
)

func TestIssuedCertificatesAreGoodForTheirPurposeOnly(t *testing.T) {
	made, err := NewAuthority("kubernetes")
	if err != nil {
		t.Fatal(err)
	}
	authority, err := LoadAuthority(made.Pair)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.Issue(Subject{
		Name: "kube-apiserver", DNSNames: []string{"kubernetes"}, Server: true,
		Addresses: []netip.Addr{netip.MustParseAddr("172.30.0.11"), netip.MustParseAddr("fd00::1")},
	})
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := tls.X509KeyPair(pair.Certificate, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority.Certificate)
	for _, name := range []string{"kubernetes", "172.30.0.11", "fd00::1"} {
		if _, err := loaded.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots}); err != nil {
			t.Errorf("as server %s: %v", name, err)
		}
	}
	client := x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if _, err := loaded.Leaf.Verify(client); err == nil {
		t.Error("a server's certificate passes as a client's")
	}
}

func TestLoadAuthorityRefusesOtherFormatsThanPEM(t *testing.T) {
	if _, err := LoadAuthority(Pair{Certificate: []byte("x"), Key: []byte("y")}); err == nil {
		t.Error("no error")
	}
}
