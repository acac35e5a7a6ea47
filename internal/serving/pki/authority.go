// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"time"
)

// Additional keys of a CA's Secret, next to tls.crt and tls.key.
const (
	nextCertificateKey     = "next.crt"
	nextPrivateKeyKey      = "next.key"
	previousCertificateKey = "previous.crt"
	issuedKey              = "issued.crt"
	nextIssuedKey          = "next.issued.crt"
)

// Authority is a CA with a trust bundle. It is rotated in steps, so that a client never sees a certificate of a CA that is not
// in its bundle: the next CA joins the bundle, later it signs, and the previous CA stays in the bundle until its certificates
// have expired. A CA that Authority makes itself joins after two thirds of the current lifetime and signs after five sixths. For
// the CAs of an issuer, see Rotation.
type Authority struct {
	current  pair
	next     *pair
	previous []*x509.Certificate
}

// NewAuthority makes a CA with this common name.
func NewAuthority(name string, now time.Time) (*Authority, error) {
	p, err := selfSigned(name, now)
	if err != nil {
		return nil, fmt.Errorf("make authority %s: %w", name, err)
	}
	return &Authority{current: p}, nil
}

// ParseAuthority parses the result of Data.
func ParseAuthority(data map[string][]byte) (*Authority, error) {
	current, err := parsePair(KeyPair{Certificate: data[CertificateKey], Key: data[PrivateKeyKey]})
	if err != nil {
		return nil, fmt.Errorf("read the authority's %s and %s: %w", CertificateKey, PrivateKeyKey, err)
	}
	if !current.certificate.IsCA {
		return nil, fmt.Errorf("read the authority's %s: it is not the certificate of an authority", CertificateKey)
	}
	current.issued = data[issuedKey]
	a := &Authority{current: current}
	if len(data[nextCertificateKey]) > 0 {
		next, err := parsePair(KeyPair{Certificate: data[nextCertificateKey], Key: data[nextPrivateKeyKey]})
		if err != nil {
			return nil, fmt.Errorf("read the authority's %s and %s: %w", nextCertificateKey, nextPrivateKeyKey, err)
		}
		next.issued = data[nextIssuedKey]
		a.next = &next
	}
	if a.previous, err = ParseCertificates(data[previousCertificateKey]); err != nil {
		return nil, fmt.Errorf("read the authority's %s: %w", previousCertificateKey, err)
	}
	return a, nil
}

// Data returns the content of the CA's Secret. It contains private keys.
func (a *Authority) Data() (map[string][]byte, error) {
	data := map[string][]byte{CertificateKey: encodeCertificate(a.current.certificate.Raw)}
	var err error
	if data[PrivateKeyKey], err = encodeKey(a.current.key); err != nil {
		return nil, err
	}
	if a.current.issued != nil {
		data[issuedKey] = a.current.issued
	}
	if a.next != nil {
		data[nextCertificateKey] = encodeCertificate(a.next.certificate.Raw)
		if a.next.issued != nil {
			data[nextIssuedKey] = a.next.issued
		}
		if data[nextPrivateKeyKey], err = encodeKey(a.next.key); err != nil {
			return nil, err
		}
	}
	if len(a.previous) > 0 {
		data[previousCertificateKey] = encodeBundle(a.previous)
	}
	return data, nil
}

// Bundle returns the trusted certificates as PEM.
func (a *Authority) Bundle() []byte {
	all := []*x509.Certificate{a.current.certificate}
	if a.next != nil {
		all = append(all, a.next.certificate)
	}
	return encodeBundle(append(all, a.previous...))
}

// Pool returns the bundle for Go's TLS.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(a.Bundle())
	return pool
}

func encodeBundle(certificates []*x509.Certificate) []byte {
	var b bytes.Buffer
	for _, c := range certificates {
		b.Write(encodeCertificate(c.Raw))
	}
	return b.Bytes()
}

func selfSigned(name string, now time.Time) (pair, error) {
	key, err := newKey()
	if err != nil {
		return pair{}, err
	}
	return anchor(&x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-skew), NotAfter: now.Add(AuthorityLifetime),
	}, key)
}

// anchor makes a self-signed CA certificate for the key. The template has its name and its validity.
func anchor(template *x509.Certificate, key *ecdsa.PrivateKey) (pair, error) {
	serial, err := newSerial()
	if err != nil {
		return pair{}, err
	}
	template.SerialNumber = serial
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature
	template.BasicConstraintsValid, template.IsCA, template.MaxPathLenZero = true, true, true
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return pair{}, fmt.Errorf("sign: %w", err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return pair{}, fmt.Errorf("parse the signed certificate: %w", err)
	}
	return pair{certificate: certificate, key: key}, nil
}
