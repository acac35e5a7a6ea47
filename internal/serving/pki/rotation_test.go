// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"slices"
	"strings"
	"testing"
	"time"
)

// issuer is an organisation's root CA, which signs intermediate CAs.
type issuer struct {
	t    *testing.T
	root pair
}

func newIssuer(t *testing.T) issuer {
	t.Helper()
	root, err := selfSigned("an organisation", start)
	if err != nil {
		t.Fatal(err)
	}
	root.certificate.MaxPathLen, root.certificate.MaxPathLenZero = -1, false
	return issuer{t, root}
}

func (i issuer) sign(template *x509.Certificate, key *ecdsa.PrivateKey) KeyPair {
	i.t.Helper()
	template.SerialNumber = must(i.t, newSerial)
	template.BasicConstraintsValid = true
	der, err := x509.CreateCertificate(rand.Reader, template, i.root.certificate, key.Public(), i.root.key)
	if err != nil {
		i.t.Fatal(err)
	}
	encoded, err := encodeKey(key)
	if err != nil {
		i.t.Fatal(err)
	}
	return KeyPair{Certificate: slices.Concat(encodeCertificate(der), encodeCertificate(i.root.certificate.Raw)), Key: encoded}
}

func must[T any](t *testing.T, f func() (T, error)) T {
	t.Helper()
	v, err := f()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func intermediate(from time.Time, life time.Duration) *x509.Certificate {
	return &x509.Certificate{
		Subject: pkix.Name{CommonName: "kiln-test", Organization: []string{"an organisation"}}, IsCA: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: from, NotAfter: from.Add(life),
	}
}

func (i issuer) issue(key *ecdsa.PrivateKey, now time.Time, life time.Duration) *Issued {
	i.t.Helper()
	issued, err := ParseIssued(i.sign(intermediate(now, life), key), now)
	if err != nil {
		i.t.Fatal(err)
	}
	return issued
}

// TestAnIssuersAuthoritiesComeAndGoWithoutABreak steps through the days of a CA that gets an issuer, another issuer, and none
// again. At each step it checks that certificates in use are trusted by bundles in use, some of which are fifty minutes old.
func TestAnIssuersAuthoritiesComeAndGoWithoutABreak(t *testing.T) {
	const step, stale, unit = 10 * time.Minute, 5, 6 * time.Hour
	first, second := newIssuer(t), newIssuer(t)
	key := must(t, newKey)
	at := map[int]Rotation{
		1:  {ByIssuer: true},
		2:  {ByIssuer: true, Issued: first.issue(key, start.Add(2*unit), 90*unit)},
		30: {ByIssuer: true, Issued: first.issue(must(t, newKey), start.Add(30*unit), 90*unit)},
		31: {ByIssuer: true, Issued: first.issue(key, start.Add(31*unit), 90*unit)}, // the first key again
		40: {ByIssuer: true},
		41: {ByIssuer: true, Issued: second.issue(must(t, newKey), start.Add(41*unit), 2*unit)},
		42: {ByIssuer: true, Issued: second.issue(must(t, newKey), start.Add(42*unit), 90*unit)},
		50: {},
	}
	a := newTestAuthority(t)
	p := Profile{CommonName: "ovn-northd"}
	kp := issue(t, a, p, start)
	foreign := foreigner(t, first)
	bundles := [][]byte{a.Bundle()}
	s, signers := Rotation{}, 1
	for n := 0; n < 52*int(unit/step); n++ {
		now := start.Add(time.Duration(n) * step)
		if next, is := at[n/int(unit/step)]; is {
			s = next
		}
		before := a.current.certificate
		if err := a.Advance(s, now); err != nil {
			t.Fatal(err)
		}
		a = reread(t, a)
		if !a.current.certificate.Equal(before) {
			signers++
		}
		old := kp
		if !a.Current(kp, p, now) {
			kp = issue(t, a, p, now)
		}
		bundles = append(bundles, a.Bundle())
		for _, bundle := range bundles[max(0, len(bundles)-stale):] {
			if n%6 == 0 || !bytes.Equal(bundle, bundles[len(bundles)-1]) {
				trusts(t, bundle, kp, now, "an old bundle, a new certificate")
			}
		}
		trusts(t, a.Bundle(), old, now, "a new bundle, an old certificate")
		if n%6 == 0 && foreign.trustedBy(a) {
			t.Fatalf("%s: a certificate of another authority of the same issuer is trusted", now)
		}
	}
	if want := 7; signers != want {
		t.Errorf("%d authorities have signed; want %d", signers, want)
	}
	if until, issued := a.Signing(); issued || until.Before(start.AddDate(9, 0, 0)) {
		t.Errorf("in the end the authority is issued: %v, good until %s", issued, until)
	}
	if err := a.Advance(Rotation{}, start.Add(50*unit+2*step+LeafLifetime+time.Hour)); err != nil {
		t.Fatal(err)
	}
	if len(a.previous) > 0 {
		t.Errorf("%d authorities are trusted for longer than anything that they have signed is good", len(a.previous))
	}
}

// foreigners present the certificate of another role with the whole chain up to the issuer's root.
type foreigners struct {
	leaf, chain *x509.Certificate
}

func foreigner(t *testing.T, i issuer) foreigners {
	t.Helper()
	issued := i.issue(must(t, newKey), start, AuthorityLifetime)
	other := &Authority{current: issued.pair}
	return foreigners{leafOf(t, issue(t, other, Profile{CommonName: "node-1"}, start)), issued.certificate}
}

func (f foreigners) trustedBy(a *Authority) bool {
	pool := x509.NewCertPool()
	pool.AddCert(f.chain)
	_, err := f.leaf.Verify(x509.VerifyOptions{
		Roots: a.Pool(), Intermediates: pool, CurrentTime: start.Add(time.Hour), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	return err == nil
}

func TestASuccessorThatDoesNotSignYetGivesWay(t *testing.T) {
	i := newIssuer(t)
	a := newTestAuthority(t)
	advance := func(s Rotation, now time.Time) {
		t.Helper()
		if err := a.Advance(s, now); err != nil {
			t.Fatal(err)
		}
		a = reread(t, a)
	}
	one, two := i.issue(must(t, newKey), start, 90*24*time.Hour), i.issue(must(t, newKey), start, 90*24*time.Hour)
	advance(Rotation{ByIssuer: true, Issued: one}, start)
	if want := start.Add(settle); !a.Joining().Equal(want) || !a.NextChange(start).Equal(want) {
		t.Errorf("it signs at %s, the next change is at %s; want %s", a.Joining(), a.NextChange(start), want)
	}
	advance(Rotation{ByIssuer: true, Issued: two}, start.Add(settle/2))
	advance(Rotation{ByIssuer: true, Issued: two}, start.Add(settle))
	if _, issued := a.Signing(); issued {
		t.Error("the second signs before all components trust it")
	}
	advance(Rotation{}, start.Add(settle))
	if a.next != nil {
		t.Error("with the issuer given up its authority is still about to sign")
	}
	advance(Rotation{ByIssuer: true, Issued: two}, start.Add(settle))
	advance(Rotation{ByIssuer: true, Issued: two}, start.Add(2*settle))
	if _, issued := a.Signing(); !issued || a.next != nil {
		t.Error("it does not sign after an hour")
	}
	advance(Rotation{}, start.Add(3*settle))
	advance(Rotation{ByIssuer: true, Issued: two}, start.Add(3*settle))
	if a.next != nil {
		t.Error("a successor of its own is still about to take over from the issuer's, which is wanted again")
	}
}

func TestAnIssuerThatFallsSilentCausesNoRush(t *testing.T) {
	const life, step = 30 * 24 * time.Hour, 20 * time.Minute
	i := newIssuer(t)
	s := Rotation{ByIssuer: true, Issued: i.issue(must(t, newKey), start, life)}
	a := newTestAuthority(t)
	for _, at := range []time.Time{start, start.Add(settle)} {
		if err := a.Advance(s, at); err != nil {
			t.Fatal(err)
		}
	}
	p := Profile{CommonName: "ovn-northd"}
	kp, made := issue(t, a, p, start.Add(settle)), 1
	for now := start.Add(settle); now.Before(start.Add(life + 24*time.Hour)); now = now.Add(step) {
		if err := a.Advance(s, now); err != nil {
			t.Fatal(err)
		}
		if at := a.NextChange(now); !at.IsZero() && !at.After(now) {
			t.Fatalf("at %s the next change is at %s: it would be asked for without end", now, at)
		}
		if !a.Current(kp, p, now) {
			kp, made = issue(t, a, p, now), made+1
		}
	}
	if made != 1 {
		t.Errorf("%d certificates were made; a second one is no better than the first", made)
	}
	request := must(t, func() (*x509.CertificateRequest, error) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, err
		}
		der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "node-1"}}, key)
		if err != nil {
			return nil, err
		}
		return x509.ParseCertificateRequest(der)
	})
	if _, err := a.SignRequest(request, LeafLifetime, start.Add(life-time.Hour)); err == nil {
		t.Error("a node got a certificate that it has to have renewed at once")
	}
	if err := a.Advance(Rotation{}, start.Add(life+time.Hour)); err != nil {
		t.Fatal(err)
	}
	if _, issued := a.Signing(); issued {
		t.Error("with the issuer given up the expired authority still signs")
	}
}

func TestIssuedAuthoritiesThatCannotBeUsedAreRefused(t *testing.T) {
	i := newIssuer(t)
	good := func() *x509.Certificate { return intermediate(start, 90*24*time.Hour) }
	key := must(t, newKey)
	changed := func(change func(*x509.Certificate)) KeyPair {
		template := good()
		change(template)
		return i.sign(template, key)
	}
	foreign := i.sign(good(), must(t, newKey))
	for name, c := range map[string]struct {
		kp   KeyPair
		want string
	}{
		"not an authority":     {changed(func(c *x509.Certificate) { c.IsCA, c.KeyUsage = false, x509.KeyUsageDigitalSignature }), "isCA"},
		"not for signing":      {changed(func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageCRLSign }), "cert sign"},
		"without a name":       {changed(func(c *x509.Certificate) { c.Subject.CommonName = "" }), "common name"},
		"good for an hour":     {changed(func(c *x509.Certificate) { c.NotAfter = c.NotBefore.Add(time.Hour) }), "good for 1h0m0s"},
		"expired":              {changed(func(c *x509.Certificate) { c.NotBefore = start.AddDate(-1, 0, 0); c.NotAfter = start }), "expired"},
		"empty":                {KeyPair{}, "no certificate"},
		"the key of another":   {KeyPair{Certificate: changed(func(*x509.Certificate) {}).Certificate, Key: foreign.Key}, "does not match the certificate"},
		"not a certificate":    {KeyPair{Certificate: foreign.Key, Key: foreign.Key}, "a PRIVATE KEY where a certificate should be"},
		"an encoding of PKCS1": {KeyPair{Certificate: foreign.Certificate, Key: []byte("-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n")}, "PKCS #8"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseIssued(c.kp, start)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "BEGIN") {
				t.Errorf("got %v; want one that says %q", err, c.want)
			}
		})
	}
}
