// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/internal/daemontest"
	"github.com/kiln-net/kiln/internal/pki"
)

// leaf returns the certificate in a Secret.
func (s *scenario) leaf(t *testing.T, secret string) *x509.Certificate {
	t.Helper()
	var held corev1.Secret
	if err := s.exists(t, &held, secret)(); err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(held.Data[pki.CertificateKey])
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}

// expired advances the operator's clock by more than a leaf's lifetime.
func (s *scenario) expired(t *testing.T) {
	g := newG(t)
	before := map[string]*x509.Certificate{}
	for _, c := range credentials {
		before[c.secret] = s.leaf(t, c.secret)
	}
	authority := s.leaf(t, authoritySecretPrefix+authorityNorthbound)
	s.ahead.Store(int64(pki.LeafLifetime + 24*time.Hour))
	defer s.ahead.Store(0)
	s.poke(t, "expired") // the operator would wake up by itself at the first renewal
	for _, c := range credentials {
		g.Eventually(func() bool { return s.leaf(t, c.secret).NotAfter.After(s.now()) }).Should(BeTrue(), c.secret)
		after := s.leaf(t, c.secret)
		g.Expect(after.Equal(before[c.secret])).To(BeFalse())
		g.Expect(after.AuthorityKeyId).To(Equal(before[c.secret].AuthorityKeyId), "its earlier clients still trust it")
	}
	g.Expect(s.leaf(t, authoritySecretPrefix+authorityNorthbound).Equal(authority)).To(BeTrue())
}

// poke wakes the operator.
func (s *scenario) poke(t *testing.T, label string) {
	t.Helper()
	g := newG(t)
	node := s.named(&corev1.Node{}, "worker-1")
	node.SetNamespace("")
	g.Expect(s.admin.Get(t.Context(), client.ObjectKeyFromObject(node), node)).To(Succeed())
	labels := node.GetLabels()
	labels["poke"] = label
	node.SetLabels(labels)
	g.Expect(s.admin.Update(t.Context(), node)).To(Succeed())
}

// away advances the clock beyond the lifetime of all CAs and of all certificates that they have signed. No certificate is
// valid then.
func (s *scenario) away(t *testing.T) {
	g := newG(t)
	before := s.signers(t)
	s.ahead.Store(int64(2 * pki.AuthorityLifetime))
	s.poke(t, "away")
	for _, name := range authorities {
		g.Eventually(func() bool { return s.leaf(t, authoritySecretPrefix+name).NotAfter.After(s.now()) }).Should(BeTrue(), name)
	}
	for name, id := range s.signers(t) {
		g.Expect(id).NotTo(Equal(before[name]))
	}
	for _, c := range credentials {
		g.Eventually(func() bool { return s.leaf(t, c.secret).NotAfter.After(s.now()) }).Should(BeTrue(), c.secret)
	}
	for db, m := range s.members {
		asked := m.count()
		s.poke(t, db)
		g.Eventually(m.count).Should(BeNumerically(">", asked), "no client with the new trust has asked the member of %s", db)
	}
	g.Eventually(s.condition(t, "Degraded")).Should(HavePrefix("False"))
	g.Eventually(s.condition(t, "Progressing")).Should(HavePrefix("False AsSpecified"))
	s.lost(t) // the new CAs are valid only from a future date
}

func (m *fakeMember) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.asked
}

func (s *scenario) secretsKept(t *testing.T) {
	g := newG(t)
	logged, err := io.ReadAll(io.NewSectionReader(s.log, 0, 1<<30))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(logged)).To(ContainSubstring("kiln-operator"), "this is not the operator's log")
	var events eventsv1.EventList
	g.Expect(s.admin.List(t.Context(), &events)).To(Succeed())
	published, err := json.Marshal([]any{events.Items, s.cluster(t).Status})
	g.Expect(err).NotTo(HaveOccurred())

	var secrets corev1.SecretList
	g.Expect(s.admin.List(t.Context(), &secrets, client.InNamespace(testNamespace))).To(Succeed())
	keys := 0
	for i := range secrets.Items {
		for file, data := range secrets.Items[i].Data {
			if !strings.Contains(file, "key") {
				continue
			}
			keys++
			for _, text := range [][]byte{logged, published} {
				g.Expect(daemontest.Shows(text, data)).To(BeFalse(), "%s of %s is published", file, secrets.Items[i].Name)
				g.Expect(bytes.Contains(text, []byte("PRIVATE KEY"))).To(BeFalse())
			}
		}
	}
	g.Expect(keys).To(BeNumerically(">=", len(authorities)+len(credentials)))
}

// oneSecret is a cache, and an API server, with one Secret or none.
type oneSecret struct {
	cache.Cache
	secret *corev1.Secret
}

func (o oneSecret) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	if o.secret == nil {
		return apierrors.NewNotFound(corev1.Resource("secrets"), key.Name)
	}
	o.secret.DeepCopyInto(into.(*corev1.Secret))
	return nil
}

// A Secret without data is a damaged CA, and not the absence of one: a new CA would cut off all clients.
func TestASecretWithoutDataExists(t *testing.T) {
	held := &corev1.Secret{Data: map[string][]byte{"a": []byte("b")}}
	for _, c := range []struct {
		name        string
		cached, api *corev1.Secret
		exists      bool
		entries     int
	}{
		{"no Secret", nil, nil, false, 0},
		{"a Secret", held, nil, true, 1},
		{"a Secret that the cache does not have yet", nil, held, true, 1},
		{"a Secret without data", &corev1.Secret{}, nil, true, 0},
		{"a Secret without data that the cache does not have yet", nil, &corev1.Secret{}, true, 0},
	} {
		r := &Reconciler{APIReader: oneSecret{secret: c.api}, secrets: map[string]cache.Cache{"ca": oneSecret{secret: c.cached}}}
		data, err := r.secretData(t.Context(), "ca")
		if err != nil || (data != nil) != c.exists || len(data) != c.entries {
			t.Errorf("%s: %v, %v", c.name, data, err)
		}
	}
	if _, err := pki.ParseAuthority(map[string][]byte{}); err == nil {
		t.Error("a CA is read from no data")
	}
}
