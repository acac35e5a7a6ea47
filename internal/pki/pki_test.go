// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"strings"
	"testing"
	"time"
)

var start = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func newTestAuthority(t *testing.T) *Authority {
	t.Helper()
	a, err := NewAuthority("kiln-test", start)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func reread(t *testing.T, a *Authority) *Authority {
	t.Helper()
	data, err := a.Data()
	if err != nil {
		t.Fatal(err)
	}
	again, err := ParseAuthority(data)
	if err != nil {
		t.Fatal(err)
	}
	return again
}

func issue(t *testing.T, a *Authority, p Profile, now time.Time) KeyPair {
	t.Helper()
	kp, err := a.Issue(p, now)
	if err != nil {
		t.Fatal(err)
	}
	return kp
}

func leafOf(t *testing.T, kp KeyPair) *x509.Certificate {
	t.Helper()
	p, err := parsePair(kp)
	if err != nil {
		t.Fatal(err)
	}
	return p.certificate
}

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

func TestMutualTLSByTwoAuthorities(t *testing.T) {
	servers, clients := newTestAuthority(t), newTestAuthority(t)
	server := issue(t, servers, Profile{CommonName: "ovn-nb", DNSNames: []string{"ovn-nb"}, Server: true}, start)
	for _, c := range []struct {
		name       string
		client     KeyPair
		serverName string
		works      bool
	}{
		{"a client of the trusted authority", issue(t, clients, Profile{CommonName: "kube-ovn-controller"}, start), "ovn-nb", true},
		{"a Raft peer, a server as client", issue(t, clients, Profile{CommonName: "ovn-nb", Server: true}, start), "ovn-nb", true},
		{"a client of another authority", issue(t, newTestAuthority(t), Profile{CommonName: "eve"}, start), "ovn-nb", false},
		{"a server of another name", issue(t, clients, Profile{CommonName: "kube-ovn-controller"}, start), "ovn-sb", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			near, far := net.Pipe()
			defer near.Close()
			defer far.Close()
			clock := func() time.Time { return start.Add(time.Minute) }
			serverSide := tls.Server(far, &tls.Config{
				Certificates: []tls.Certificate{keyPair(t, server)}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients.Pool(), Time: clock,
			})
			clientSide := tls.Client(near, &tls.Config{
				Certificates: []tls.Certificate{keyPair(t, c.client)}, RootCAs: servers.Pool(), ServerName: c.serverName, Time: clock,
				MaxVersion: tls.VersionTLS12, // with TLS 1.2, the client sees the server's verdict in the handshake
			})
			refused := make(chan error, 1)
			go func() {
				err := serverSide.Handshake()
				if err != nil {
					far.Close()
				}
				refused <- err
			}()
			err := clientSide.Handshake()
			near.Close()
			if works := err == nil && <-refused == nil; works != c.works {
				t.Errorf("works is %v (%v); want %v", works, err, c.works)
			}
		})
	}
}

func keyPair(t *testing.T, kp KeyPair) tls.Certificate {
	t.Helper()
	c, err := tls.X509KeyPair(kp.Certificate, kp.Key)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

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

func trusts(t *testing.T, bundle []byte, kp KeyPair, now time.Time, what string) {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(bundle)
	_, err := leafOf(t, kp).Verify(x509.VerifyOptions{
		Roots: pool, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		t.Fatalf("%s: %s: %v", now, what, err)
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
