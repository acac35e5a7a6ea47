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

// Keys of an authority's Secret beside tls.crt and tls.key.
const (
	nextCertificateKey     = "next.crt"
	nextPrivateKeyKey      = "next.key"
	previousCertificateKey = "previous.crt"
	issuedKey              = "issued.crt"
	nextIssuedKey          = "next.issued.crt"
)

// Authority signs certificates and says whom those who trust it should trust. It is replaced in steps, so that nobody ever meets
// a certificate of an authority not heard of before: a successor joins the bundle, later it signs, and the predecessor stays in the
// bundle for as long as what it signed is good. A successor that it makes itself joins after two thirds of its life and signs after five
// sixths; for one that an issuer makes see Succession.
type Authority struct {
	current  pair
	next     *pair
	previous []*x509.Certificate
}

// NewAuthority makes an authority of this common name.
func NewAuthority(name string, now time.Time) (*Authority, error) {
	p, err := selfSigned(name, now)
	if err != nil {
		return nil, fmt.Errorf("make authority %s: %w", name, err)
	}
	return &Authority{current: p}, nil
}

// ParseAuthority reads what Data returned.
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

// Data is the form kept in a Secret. It holds private keys.
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

// Bundle is the PEM of the certificates to trust.
func (a *Authority) Bundle() []byte {
	all := []*x509.Certificate{a.current.certificate}
	if a.next != nil {
		all = append(all, a.next.certificate)
	}
	return encodeBundle(append(all, a.previous...))
}

// Pool is the bundle as Go's TLS takes it.
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

// anchor signs the certificate of an authority with its own key. The template has its name and its validity.
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
