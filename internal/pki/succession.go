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

// settle is how long an issuer's authority is in the bundle before it signs, so that everyone has heard of it: a kubelet needs about two
// minutes to mount what has changed.
const settle = time.Hour

// minimumIssued is how long an issuer's authority has to be good for, so that the next can take its place in steps.
const minimumIssued = 12 * time.Hour

// Succession says who makes the successors of an authority.
//
// An issuer's joins the bundle as soon as it is there and signs an hour later, and so does the authority's own when the issuer is given up.
// What the bundle holds of it is not the issuer's certificate but an anchor: a self-signed certificate of the same name, key and end.
// OpenSSL as OVS uses it takes a chain only when it ends in a self-signed certificate, and whoever trusted the issuer's root would
// take every authority below it for this one.
type Succession struct {
	// ByIssuer: an issuer makes them. The authority makes one of its own only while the issuer has not made any.
	ByIssuer bool
	// Issued is what the issuer made last; nil when it has made none.
	Issued *Issued
}

// Issued is an authority that an issuer made: a key and its certificate, with or without the chain.
type Issued struct {
	pair
	chain []byte
}

// ParseIssued reads what an issuer made and checks that it can be used from now on.
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

// anchor is what stands for an issued authority in bundles.
func (i *Issued) anchor(now time.Time) (pair, error) {
	c := i.certificate
	p, err := anchor(&x509.Certificate{
		RawSubject: c.RawSubject, SubjectKeyId: c.SubjectKeyId, NotBefore: now.Add(-skew), NotAfter: c.NotAfter,
	}, i.key)
	p.issued = i.chain
	return p, err
}

// Advance takes the steps of replacement that are due: more than one when nobody took any for years. Repeated at the same time it changes
// nothing.
func (a *Authority) Advance(s Succession, now time.Time) error {
	for {
		if err := a.succeed(s, now); err != nil {
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
	var kept []*x509.Certificate
	for _, c := range a.previous {
		if now.Before(c.NotAfter) {
			kept = append(kept, c)
		}
	}
	a.previous = kept
	return nil
}

// succeed makes the successor what it should be. One that does not sign yet can go at any time: nobody has a certificate of it.
func (a *Authority) succeed(s Succession, now time.Time) error {
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

// joined is when the successor came into the bundle.
func (a *Authority) joined() time.Time { return a.next.certificate.NotBefore.Add(skew) }

// signsAt is when the successor takes over: not before everyone has heard of it, even if that is late.
func (a *Authority) signsAt() time.Time {
	at := a.joined().Add(settle)
	if own := share(a.current.certificate, 5, 6); a.current.issued == nil && a.next.issued == nil && own.After(at) {
		at = own
	}
	if a.current.certificate.NotAfter.Before(at) {
		return a.joined() // there is nothing to wait for
	}
	return at
}

// retire is the certificate by which what an authority has signed stays trusted, and for no longer than that can be good.
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

// NextChange is when Advance will have something to do, after now; zero when only an issuer can do something.
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

// Overdue is when an authority of an issuer's should have a successor.
func (a *Authority) Overdue() time.Time { return share(a.current.certificate, 5, 6) }

// Signing describes who signs: the end of the authority, and whether an issuer made it.
func (a *Authority) Signing() (until time.Time, issued bool) {
	return a.current.certificate.NotAfter, a.current.issued != nil
}

// Joining is when a successor that is an issuer's, or takes over from one, begins to sign; zero when there is none.
func (a *Authority) Joining() time.Time {
	if a.next == nil || a.current.issued == nil && a.next.issued == nil {
		return time.Time{}
	}
	return a.signsAt()
}
