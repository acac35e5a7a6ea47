// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

// settle is how long an issuer's CA is in the bundle before it signs, so that all processes have received it: a kubelet needs
// about two minutes to update a mounted Secret.
const settle = time.Hour

// minimumIssued is the minimum lifetime of an issuer's CA: a shorter one leaves no time for a rotation in steps.
const minimumIssued = 12 * time.Hour

// Rotation is the source of the next CA.
//
// An issuer's CA joins the bundle as soon as it exists and signs an hour later. A self-made CA does the same when it replaces an
// issuer's. The bundle contains not the issuer's certificate but an anchor: a self-signed certificate with the same name, key
// and end. There are two reasons: OpenSSL as OVS uses it accepts a chain only if it ends in a self-signed certificate, and a
// bundle with the issuer's root would trust every CA below that root.
type Rotation struct {
	// ByIssuer: an issuer makes the CAs. A self-made CA is used only until the issuer has made its first one.
	ByIssuer bool
	// Issued is the newest CA of the issuer; nil if there is none.
	Issued *Issued
}

// Issued is a CA from an issuer: a key and its certificate, with or without the chain.
type Issued struct {
	pair
	chain []byte
}

// ParseIssued parses a CA from an issuer and checks that it is usable now.
func ParseIssued(kp KeyPair, now time.Time) (*Issued, error) {
	chain, err := ParseCertificates(kp.Certificate)
	if err != nil {
		return nil, err
	}
	if len(chain) == 0 {
		return nil, errors.New("there is no certificate")
	}
	p, err := parsePair(KeyPair{Certificate: encodeCertificate(chain[0].Raw), Key: kp.Key})
	if err != nil {
		return nil, err
	}
	c := p.certificate
	switch {
	case !c.IsCA || c.KeyUsage&x509.KeyUsageCertSign == 0:
		return nil, errors.New("it is not the certificate of an authority: the issuer must grant isCA and the usage cert sign")
	case c.Subject.CommonName == "":
		return nil, errors.New("the issuer left out the common name")
	case c.NotAfter.Sub(c.NotBefore) < minimumIssued:
		return nil, fmt.Errorf("the issuer made it good for %s: it takes %s to replace authorities in steps", c.NotAfter.Sub(c.NotBefore), minimumIssued)
	case !now.Before(c.NotAfter):
		return nil, fmt.Errorf("it has expired at %s", c.NotAfter.Format(time.RFC3339))
	}
	return &Issued{pair: p, chain: kp.Certificate}, nil
}

// anchor returns the self-signed certificate that represents an issued CA in bundles.
func (i *Issued) anchor(now time.Time) (pair, error) {
	c := i.certificate
	p, err := anchor(&x509.Certificate{
		RawSubject: c.RawSubject, SubjectKeyId: c.SubjectKeyId, NotBefore: now.Add(-skew), NotAfter: c.NotAfter,
	}, i.key)
	p.issued = i.chain
	return p, err
}

// Advance takes all rotation steps that are due, also several at once after years without a call. It is idempotent for the same
// time.
func (a *Authority) Advance(s Rotation, now time.Time) error {
	for {
		if err := a.prepareNext(s, now); err != nil {
			return fmt.Errorf("make the successor of authority %s: %w", a.current.certificate.Subject.CommonName, err)
		}
		if a.next == nil || now.Before(a.signsAt()) {
			break
		}
		retired, err := retire(a.current, now)
		if err != nil {
			return fmt.Errorf("retire authority %s: %w", a.current.certificate.Subject.CommonName, err)
		}
		a.previous = append(a.previous, retired)
		a.current, a.next = *a.next, nil
	}
	var valid []*x509.Certificate
	for _, c := range a.previous {
		if now.Before(c.NotAfter) {
			valid = append(valid, c)
		}
	}
	a.previous = valid
	return nil
}

// prepareNext updates the next CA. Until the next CA signs, it can be discarded at any time, because it has not issued a
// certificate.
func (a *Authority) prepareNext(s Rotation, now time.Time) error {
	switch {
	case s.ByIssuer && s.Issued != nil:
		return a.followIssuer(s.Issued, now)
	case !s.ByIssuer && a.next != nil && a.next.issued != nil:
		a.next = nil
	}
	due := !now.Before(renewal(a.current.certificate))
	if a.current.issued != nil {
		due = !s.ByIssuer
	}
	if a.next != nil || !due {
		return nil
	}
	next, err := selfSigned(a.current.certificate.Subject.CommonName, now)
	if err != nil {
		return err
	}
	a.next = &next
	return nil
}

func (a *Authority) followIssuer(issued *Issued, now time.Time) error {
	switch {
	case bytes.Equal(a.current.issued, issued.chain):
		a.next = nil
		return nil
	case a.next != nil && bytes.Equal(a.next.issued, issued.chain):
		return nil
	}
	next, err := issued.anchor(now)
	if err != nil {
		return err
	}
	a.next = &next
	return nil
}

// joined returns when the next CA joined the bundle.
func (a *Authority) joined() time.Time { return a.next.certificate.NotBefore.Add(skew) }

// signsAt returns when the next CA starts to sign. All processes must have received it by then, even if that is late.
func (a *Authority) signsAt() time.Time {
	at := a.joined().Add(settle)
	if own := share(a.current.certificate, 5, 6); a.current.issued == nil && a.next.issued == nil && own.After(at) {
		at = own
	}
	if a.current.certificate.NotAfter.Before(at) {
		return a.joined() // the current CA has expired by then, so waiting does not help
	}
	return at
}

// retire returns a certificate that keeps a CA's signatures trusted, but only until the last certificate that it issued can have
// expired.
func retire(p pair, now time.Time) (*x509.Certificate, error) {
	c, end := p.certificate, now.Add(LeafLifetime)
	if !end.Before(c.NotAfter) {
		return c, nil
	}
	retired, err := anchor(&x509.Certificate{
		RawSubject: c.RawSubject, SubjectKeyId: c.SubjectKeyId, NotBefore: c.NotBefore, NotAfter: end,
	}, p.key)
	return retired.certificate, err
}

// NextChange returns when Advance next has work after now; zero if only an issuer can cause a change.
func (a *Authority) NextChange(now time.Time) time.Time {
	var at time.Time
	soonest := func(t time.Time) {
		if t.After(now) && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	switch {
	case a.next != nil:
		soonest(a.signsAt())
	case a.current.issued == nil:
		soonest(renewal(a.current.certificate))
	default:
		soonest(a.Overdue())
	}
	for _, c := range a.previous {
		soonest(c.NotAfter)
	}
	return at
}

// Overdue returns when an issuer's CA should have a successor.
func (a *Authority) Overdue() time.Time { return share(a.current.certificate, 5, 6) }

// Signing returns when the current CA expires, and whether an issuer made it.
func (a *Authority) Signing() (until time.Time, issued bool) {
	return a.current.certificate.NotAfter, a.current.issued != nil
}

// Joining returns when the next CA starts to sign, if it or the current CA is an issuer's; otherwise zero.
func (a *Authority) Joining() time.Time {
	if a.next == nil || a.current.issued == nil && a.next.issued == nil {
		return time.Time{}
	}
	return a.signsAt()
}
