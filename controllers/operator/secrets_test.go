// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"bytes"
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
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/controllers/operator/certs"
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
	for _, c := range certs.Credentials {
		before[c.Secret] = s.leaf(t, c.Secret)
	}
	authority := s.leaf(t, certs.SecretPrefix+certs.Northbound)
	s.ahead.Store(int64(pki.LeafLifetime + 24*time.Hour))
	defer s.ahead.Store(0)
	s.poke(t, "expired") // the operator would wake up by itself at the first renewal
	for _, c := range certs.Credentials {
		g.Eventually(func() bool { return s.leaf(t, c.Secret).NotAfter.After(s.now()) }).Should(BeTrue(), c.Secret)
		after := s.leaf(t, c.Secret)
		g.Expect(after.Equal(before[c.Secret])).To(BeFalse())
		g.Expect(after.AuthorityKeyId).To(Equal(before[c.Secret].AuthorityKeyId), "its earlier clients still trust it")
	}
	g.Expect(s.leaf(t, certs.SecretPrefix+certs.Northbound).Equal(authority)).To(BeTrue())
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
	for _, name := range certs.Authorities {
		g.Eventually(func() bool { return s.leaf(t, certs.SecretPrefix+name).NotAfter.After(s.now()) }).Should(BeTrue(), name)
	}
	for name, id := range s.signers(t) {
		g.Expect(id).NotTo(Equal(before[name]))
	}
	for _, c := range certs.Credentials {
		g.Eventually(func() bool { return s.leaf(t, c.Secret).NotAfter.After(s.now()) }).Should(BeTrue(), c.Secret)
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
	g.Expect(keys).To(BeNumerically(">=", len(certs.Authorities)+len(certs.Credentials)))
}
