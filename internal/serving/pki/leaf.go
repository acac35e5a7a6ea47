// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Profile is the content of a certificate.
type Profile struct {
	CommonName string
	// DNSNames are the names under which clients verify a server.
	DNSNames []string
	// Server permits server authentication. A database member uses the same certificate as a client of its Raft peers, so client
	// authentication is always permitted.
	Server bool
	// Lifetime; zero means LeafLifetime.
	Lifetime time.Duration
}

func (p Profile) usages() []x509.ExtKeyUsage {
	if p.Server {
		return []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	}
	return []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
}

// Issue makes a key and a certificate for it.
func (a *Authority) Issue(p Profile, now time.Time) (KeyPair, error) {
	key, err := newKey()
	if err != nil {
		return KeyPair{}, err
	}
	certificate, err := a.sign(key.Public(), p, now)
	if err != nil {
		return KeyPair{}, fmt.Errorf("issue a certificate for %s: %w", p.CommonName, err)
	}
	encoded, err := encodeKey(key)
	if err != nil {
		return KeyPair{}, err
	}
	return KeyPair{Certificate: certificate, Key: encoded}, nil
}

// Current reports whether Issue would make an equivalent pair for this profile: same CA, names and usages, and not yet due for
// renewal. A pair that is valid as long as the CA itself is never due, because a new one would not be valid longer.
func (a *Authority) Current(kp KeyPair, p Profile, now time.Time) bool {
	leaf, err := parsePair(kp)
	if err != nil {
		return false
	}
	c := leaf.certificate
	return c.CheckSignatureFrom(a.current.certificate) == nil &&
		(now.Before(renewal(c)) || c.NotAfter.Equal(a.current.certificate.NotAfter)) && !now.Before(c.NotBefore) &&
		c.Subject.CommonName == p.CommonName &&
		slices.Equal(c.DNSNames, p.DNSNames) &&
		slices.Equal(c.ExtKeyUsage, p.usages())
}

// Renewal returns when the pair's certificate has to be issued again.
func (kp KeyPair) Renewal() (time.Time, error) {
	leaf, err := parsePair(kp)
	if err != nil {
		return time.Time{}, fmt.Errorf("read a certificate: %w", err)
	}
	return renewal(leaf.certificate), nil
}

// EncodeRequest returns a certificate request (PKCS #10, RFC 2986) for a key as PEM.
func EncodeRequest(template *x509.CertificateRequest, key crypto.Signer) ([]byte, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		return nil, fmt.Errorf("make the certificate request: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), nil
}

// SignRequest issues a client certificate for the key of a request (RFC 2986). It uses only the request's common name; the
// caller must check that the requester may have that name. lifetime is limited to LeafLifetime.
func (a *Authority) SignRequest(request *x509.CertificateRequest, lifetime time.Duration, now time.Time) ([]byte, error) {
	if err := request.CheckSignature(); err != nil {
		return nil, fmt.Errorf("check the request's signature: %w", err)
	}
	if request.Subject.CommonName == "" {
		return nil, errors.New("the request has no common name")
	}
	if end := a.current.certificate.NotAfter; end.Sub(now) < 2*skew {
		// The requester would soon need a renewal, and repeat that.
		return nil, fmt.Errorf("the authority is good until %s only", end.Format(time.RFC3339))
	}
	return a.sign(request.PublicKey, Profile{CommonName: request.Subject.CommonName, Lifetime: lifetime}, now)
}

func (a *Authority) sign(public crypto.PublicKey, p Profile, now time.Time) ([]byte, error) {
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	lifetime := p.Lifetime
	if lifetime <= 0 || lifetime > LeafLifetime {
		lifetime = LeafLifetime
	}
	end := now.Add(lifetime)
	if last := a.current.certificate.NotAfter; end.After(last) {
		end = last
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: p.CommonName},
		DNSNames:              p.DNSNames,
		NotBefore:             now.Add(-skew),
		NotAfter:              end,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           p.usages(),
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.current.certificate, public, a.current.key)
	if err != nil {
		return nil, fmt.Errorf("sign: %w", err)
	}
	return encodeCertificate(der), nil
}
