// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"bytes"
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
)

// Authority signs certificates and says whom those who trust it should trust. It is replaced in steps, so that nobody ever meets
// a certificate of an authority not heard of before: after two thirds of its life a successor joins the bundle, after five
// sixths the successor signs and the predecessor stays in the bundle until it expires.
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
	a := &Authority{current: current}
	if len(data[nextCertificateKey]) > 0 {
		next, err := parsePair(KeyPair{Certificate: data[nextCertificateKey], Key: data[nextPrivateKeyKey]})
		if err != nil {
			return nil, fmt.Errorf("read the authority's %s and %s: %w", nextCertificateKey, nextPrivateKeyKey, err)
		}
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
	if a.next != nil {
		data[nextCertificateKey] = encodeCertificate(a.next.certificate.Raw)
		if data[nextPrivateKeyKey], err = encodeKey(a.next.key); err != nil {
			return nil, err
		}
	}
	if len(a.previous) > 0 {
		data[previousCertificateKey] = encodeBundle(a.previous)
	}
	return data, nil
}

// Advance takes the steps of replacement that are due. Repeated at the same time it changes nothing.
func (a *Authority) Advance(now time.Time) error {
	current := a.current.certificate
	if a.next == nil && !now.Before(renewal(current)) {
		next, err := selfSigned(current.Subject.CommonName, now)
		if err != nil {
			return fmt.Errorf("make the successor of authority %s: %w", current.Subject.CommonName, err)
		}
		a.next = &next
	}
	if a.next != nil && !now.Before(share(current, 5, 6)) {
		a.previous = append(a.previous, current)
		a.current, a.next = *a.next, nil
	}
	var kept []*x509.Certificate
	for _, c := range a.previous {
		if now.Before(c.NotAfter) {
			kept = append(kept, c)
		}
	}
	a.previous = kept
	return nil
}

// NextChange is when Advance will have something to do.
func (a *Authority) NextChange() time.Time {
	at := renewal(a.current.certificate)
	if a.next != nil {
		at = share(a.current.certificate, 5, 6)
	}
	for _, c := range a.previous {
		if c.NotAfter.Before(at) {
			at = c.NotAfter
		}
	}
	return at
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
	serial, err := newSerial()
	if err != nil {
		return pair{}, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             now.Add(-skew),
		NotAfter:              now.Add(AuthorityLifetime),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
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
