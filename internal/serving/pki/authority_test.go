// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// TestAnAuthorityIsReplacedWithoutABreak steps through twelve years. At each step it checks that the certificates in use are
// trusted by the bundles in use, each up to one step old.
func TestAnAuthorityIsReplacedWithoutABreak(t *testing.T) {
	a := newTestAuthority(t)
	p := Profile{CommonName: "ovn-northd"}
	kp := issue(t, a, p, start)
	bundle := a.Bundle()
	replaced, change := 0, a.NextChange(start)
	const step = 30 * 24 * time.Hour
	for now := start; now.Before(start.Add(12 * 365 * 24 * time.Hour)); now = now.Add(step) {
		due := !now.Before(change)
		before := a.current.certificate
		if err := a.Advance(Rotation{}, now); err != nil {
			t.Fatal(err)
		}
		if !a.current.certificate.Equal(before) {
			replaced++
			if !due {
				t.Errorf("%s: replaced before NextChange", now)
			}
		}
		a = reread(t, a)
		change = a.NextChange(now)
		old := kp
		if !a.Current(kp, p, now) {
			kp = issue(t, a, p, now)
		}
		trusts(t, bundle, kp, now, "an old bundle, a new certificate")
		bundle = a.Bundle()
		trusts(t, bundle, old, now, "a new bundle, an old certificate")
	}
	if replaced != 1 {
		t.Errorf("replaced %d times in twelve years; want once", replaced)
	}
	if n := bytes.Count(a.Bundle(), []byte("BEGIN CERTIFICATE")); n != 1 {
		t.Errorf("%d certificates are trusted in the end; the expired one should have gone", n)
	}
}

func TestAdvanceRepeatedChangesNothing(t *testing.T) {
	a := newTestAuthority(t)
	for _, years := range []int{0, 7, 9, 11} {
		now := start.AddDate(years, 0, 0)
		if err := a.Advance(Rotation{}, now); err != nil {
			t.Fatal(err)
		}
		before, err := a.Data()
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Advance(Rotation{}, now); err != nil {
			t.Fatal(err)
		}
		after, err := a.Data()
		if err != nil {
			t.Fatal(err)
		}
		for name := range before {
			if !bytes.Equal(before[name], after[name]) {
				t.Errorf("year %d: %s changed", years, name)
			}
		}
		if len(before) != len(after) {
			t.Errorf("year %d: %d entries became %d", years, len(before), len(after))
		}
	}
}

func TestDamagedAuthoritiesAreRefused(t *testing.T) {
	data, err := newTestAuthority(t).Data()
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := newTestAuthority(t).Data()
	if err != nil {
		t.Fatal(err)
	}
	leaf := issue(t, newTestAuthority(t), Profile{CommonName: "x"}, start)
	for name, damaged := range map[string]map[string][]byte{
		"nothing":            {},
		"no key":             {CertificateKey: data[CertificateKey]},
		"not PEM":            {CertificateKey: []byte("x"), PrivateKeyKey: data[PrivateKeyKey]},
		"the key of another": {CertificateKey: data[CertificateKey], PrivateKeyKey: foreign[PrivateKeyKey]},
		"not an authority":   {CertificateKey: leaf.Certificate, PrivateKeyKey: leaf.Key},
		"a key in the place of a certificate": {
			CertificateKey: data[CertificateKey], PrivateKeyKey: data[PrivateKeyKey], previousCertificateKey: data[PrivateKeyKey],
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseAuthority(damaged)
			if err == nil {
				t.Fatal("it was taken")
			}
			if strings.Contains(err.Error(), "BEGIN") {
				t.Errorf("the error contains the Secret's content: %v", err)
			}
		})
	}
}
