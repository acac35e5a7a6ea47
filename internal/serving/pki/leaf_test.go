// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"testing"
	"time"
)

func TestACertificateIsKeptUntilItNoLongerServes(t *testing.T) {
	a := newTestAuthority(t)
	other := newTestAuthority(t)
	p := Profile{CommonName: "ovn-nb", DNSNames: []string{"ovn-nb"}, Server: true}
	kp := issue(t, a, p, start)
	renewalAt, err := kp.Renewal()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name      string
		authority *Authority
		kp        KeyPair
		profile   Profile
		now       time.Time
		current   bool
	}{
		{"new", a, kp, p, start, true},
		{"after the authority was read again", reread(t, a), kp, p, start, true},
		{"just before two thirds of its life", a, kp, p, renewalAt.Add(-time.Second), true},
		{"after two thirds of its life", a, kp, p, renewalAt, false},
		{"by another authority of the same name", other, kp, p, start, false},
		{"with other names wanted", a, kp, Profile{CommonName: "ovn-nb", DNSNames: []string{"ovn-sb"}, Server: true}, start, false},
		{"with other uses wanted", a, kp, Profile{CommonName: "ovn-nb", DNSNames: []string{"ovn-nb"}}, start, false},
		{"missing", a, KeyPair{}, p, start, false},
		{"with the key of another", a, KeyPair{Certificate: kp.Certificate, Key: issue(t, a, p, start).Key}, p, start, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := c.authority.Current(c.kp, c.profile, c.now); got != c.current {
				t.Errorf("current is %v; want %v", got, c.current)
			}
		})
	}
	if life := renewalAt.Sub(start); life < 242*24*time.Hour || life > 244*24*time.Hour {
		t.Errorf("renewed after %s; want two thirds of a year", life)
	}
}

func TestRequestsGetTheirCommonNameAndNothingElse(t *testing.T) {
	a := newTestAuthority(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	sign := func(template x509.CertificateRequest, lifetime time.Duration) (*x509.Certificate, error) {
		der, err := x509.CreateCertificateRequest(rand.Reader, &template, key)
		if err != nil {
			t.Fatal(err)
		}
		request, err := x509.ParseCertificateRequest(der)
		if err != nil {
			t.Fatal(err)
		}
		encoded, err := a.SignRequest(request, lifetime, start)
		if err != nil {
			return nil, err
		}
		all, err := ParseCertificates(encoded)
		if err != nil {
			t.Fatal(err)
		}
		return all[0], nil
	}
	c, err := sign(x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "node-1", Organization: []string{"system:masters"}}, DNSNames: []string{"ovn-sb"},
	}, 20*365*24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if c.Subject.String() != "CN=node-1" || len(c.DNSNames) > 0 || c.IsCA {
		t.Errorf("subject %s, names %v, authority %v", c.Subject, c.DNSNames, c.IsCA)
	}
	if want := start.Add(LeafLifetime); !c.NotAfter.Equal(want) {
		t.Errorf("good until %s; want %s", c.NotAfter, want)
	}
	if len(c.ExtKeyUsage) != 1 || c.ExtKeyUsage[0] != x509.ExtKeyUsageClientAuth {
		t.Errorf("usages %v", c.ExtKeyUsage)
	}
	if _, err := sign(x509.CertificateRequest{}, time.Hour); err == nil {
		t.Error("a request without a name was signed")
	}
}
