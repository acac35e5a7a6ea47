// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pki makes the CAs and certificates of the OVN databases and their clients. Its functions are pure: PEM in, PEM out,
// with the time as an argument. So the content of Secrets decides, and a certificate is not issued twice.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"
)

// Lifetimes. A certificate is renewed after two thirds of its lifetime.
const (
	AuthorityLifetime = 10 * 365 * 24 * time.Hour
	LeafLifetime      = 365 * 24 * time.Hour
	// skew is how far a node's clock may be behind the issuing process's clock for a new certificate to be valid there at once.
	skew = time.Hour
)

// Keys in Secrets of type kubernetes.io/tls, and file names in the directories where they are mounted.
const (
	CertificateKey = "tls.crt"
	PrivateKeyKey  = "tls.key"
	TrustKey       = "ca.crt"
)

const (
	blockCertificate = "CERTIFICATE"
	blockPrivateKey  = "PRIVATE KEY"
)

// KeyPair is a certificate and its private key, as PEM.
type KeyPair struct {
	Certificate []byte
	Key         []byte
}

// pair is a parsed KeyPair.
type pair struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	// issued is set for a CA whose key comes from an issuer: the certificate chain from the issuer, as PEM.
	issued []byte
}

// renewal returns when two thirds of the certificate's lifetime are over.
func renewal(c *x509.Certificate) time.Time { return share(c, 2, 3) }

// share returns when part/whole of the certificate's lifetime is over.
func share(c *x509.Certificate, part, whole int64) time.Time {
	life := c.NotAfter.Sub(c.NotBefore)
	return c.NotBefore.Add(life / time.Duration(whole) * time.Duration(part))
}

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate a private key: %w", err)
	}
	return key, nil
}

// newSerial returns a random serial number of 127 bits (RFC 5280, section 4.1.2.2: positive, at most 20 octets).
func newSerial() (*big.Int, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("choose a serial number: %w", err)
	}
	return serial.Add(serial, big.NewInt(1)), nil
}

func encodeCertificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: blockCertificate, Bytes: der})
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode a private key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: blockPrivateKey, Bytes: der}), nil
}

// ParseCertificates parses all certificates of a PEM bundle.
func ParseCertificates(bundle []byte) ([]*x509.Certificate, error) {
	var all []*x509.Certificate
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != blockCertificate {
			return nil, fmt.Errorf("a %s where a certificate should be", block.Type)
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("parse a certificate: %w", err)
		}
		all = append(all, c)
	}
	return all, nil
}

// parsePair parses a certificate and its key and checks that they match. Its errors contain no key material.
func parsePair(kp KeyPair) (pair, error) {
	certificates, err := ParseCertificates(kp.Certificate)
	if err != nil {
		return pair{}, err
	}
	if len(certificates) != 1 {
		return pair{}, fmt.Errorf("%d certificates where one should be", len(certificates))
	}
	block, _ := pem.Decode(kp.Key)
	if block == nil || block.Type != blockPrivateKey {
		return pair{}, errors.New("no private key in PEM (PKCS #8)")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return pair{}, errors.New("the private key cannot be parsed")
	}
	key, isECDSA := parsed.(*ecdsa.PrivateKey)
	if !isECDSA || !key.PublicKey.Equal(certificates[0].PublicKey) {
		return pair{}, errors.New("the private key does not match the certificate")
	}
	return pair{certificate: certificates[0], key: key}, nil
}
