// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pki makes the certificates of the lab's Kubernetes control plane.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"time"
)

// Certificates outlast a lab, which runs for days. They are backdated for clocks that are set back.
const (
	validity = 365 * 24 * time.Hour
	backdate = time.Hour
)

// Pair is a certificate and its key, both PEM.
type Pair struct {
	Certificate []byte
	Key         []byte
}

// Authority is a CA.
type Authority struct {
	Pair
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// Subject is the subject of a certificate. Kubernetes takes the name as the user and Groups as the user's groups.
type Subject struct {
	Name      string
	Groups    []string
	DNSNames  []string
	Addresses []netip.Addr
	Server    bool // for TLS servers
	Client    bool // for TLS clients
}

// NewAuthority makes a CA with a new key.
func NewAuthority(name string) (*Authority, error) {
	key, keyPEM, err := newKey()
	if err != nil {
		return nil, err
	}
	template, err := template(Subject{Name: name})
	if err != nil {
		return nil, err
	}
	template.IsCA = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("sign the authority %s: %w", name, err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse the authority %s: %w", name, err)
	}
	return &Authority{Pair: Pair{Certificate: encode("CERTIFICATE", der), Key: keyPEM}, certificate: certificate, key: key}, nil
}

// LoadAuthority loads a CA that was stored as the Pair of an earlier NewAuthority.
func LoadAuthority(p Pair) (*Authority, error) {
	certBlock, _ := pem.Decode(p.Certificate)
	keyBlock, _ := pem.Decode(p.Key)
	if certBlock == nil || keyBlock == nil {
		return nil, errors.New("the authority's certificate or key is not PEM")
	}
	certificate, err := x509.ParseCertificate(certBlock.Bytes)
	if err != nil {
		return nil, fmt.Errorf("parse the authority's certificate: %w", err)
	}
	key, err := x509.ParseECPrivateKey(keyBlock.Bytes)
	if err != nil {
		return nil, fmt.Errorf("parse the authority's key: %w", err)
	}
	return &Authority{Pair: p, certificate: certificate, key: key}, nil
}

// Issue makes a key and signs a certificate for it.
func (a *Authority) Issue(s Subject) (Pair, error) {
	key, keyPEM, err := newKey()
	if err != nil {
		return Pair{}, err
	}
	template, err := template(s)
	if err != nil {
		return Pair{}, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, &key.PublicKey, a.key)
	if err != nil {
		return Pair{}, fmt.Errorf("sign the certificate of %s: %w", s.Name, err)
	}
	return Pair{Certificate: encode("CERTIFICATE", der), Key: keyPEM}, nil
}

// SigningKey makes a key pair without a certificate, for service account tokens: Certificate holds the public key.
func SigningKey() (Pair, error) {
	key, keyPEM, err := newKey()
	if err != nil {
		return Pair{}, err
	}
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return Pair{}, fmt.Errorf("encode a public key: %w", err)
	}
	return Pair{Certificate: encode("PUBLIC KEY", der), Key: keyPEM}, nil
}

func template(s Subject) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("make a serial number: %w", err)
	}
	now := time.Now()
	c := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: s.Name, Organization: s.Groups},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(validity),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		DNSNames:              s.DNSNames,
	}
	for _, a := range s.Addresses {
		c.IPAddresses = append(c.IPAddresses, a.AsSlice())
	}
	if s.Server {
		c.ExtKeyUsage = append(c.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	if s.Client {
		c.ExtKeyUsage = append(c.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	}
	return c, nil
}

func newKey() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encode a key: %w", err)
	}
	return key, encode("EC PRIVATE KEY", der), nil
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
