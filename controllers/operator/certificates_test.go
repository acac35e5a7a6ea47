// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/controllers/operator/certs"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/serving/pki"
	"github.com/kiln-net/kiln/internal/testing/daemontest"
)

func TestAuthoritiesOutliveALostLabel(t *testing.T) {
	s := installed(t)
	g := newG(t)
	secret := &corev1.Secret{}
	g.Expect(s.exists(t, secret, "kiln-ca-nb-server")()).To(Succeed())
	held := secret.DeepCopy()
	stripped := secret.DeepCopy()
	stripped.Labels = nil
	g.Expect(s.admin.Patch(t.Context(), stripped, client.MergeFrom(secret))).To(Succeed())
	g.Eventually(func() map[string]string {
		g.Expect(s.exists(t, secret, "kiln-ca-nb-server")()).To(Succeed())
		return secret.Labels
	}).Should(HaveKey(render.ManagedByLabel))
	g.Expect(secret.Data).To(Equal(held.Data))
	g.Expect(secret.OwnerReferences).To(BeEmpty(), "an authority outlives the OVNCluster")
	for name, files := range map[string][]string{
		"kiln-tls-ovn-nb":     {"tls.crt", "tls.key", "ca.crt", "admin-ca.crt"},
		"kiln-tls-ovn-sb":     {"tls.crt", "tls.key", "ca.crt", "admin-ca.crt"},
		"kiln-tls-northd":     {"tls.crt", "tls.key", "ca.crt"},
		"kiln-tls-controller": {"tls.crt", "tls.key", "ca.crt"},
	} {
		g.Expect(s.exists(t, secret, name)()).To(Succeed())
		for _, f := range files {
			g.Expect(secret.Data).To(HaveKeyWithValue(f, Not(BeEmpty())), name)
		}
	}
	trust := &corev1.ConfigMap{}
	g.Expect(s.exists(t, trust, render.TrustConfigMap)()).To(Succeed())
	for _, file := range []string{render.TrustFile, certs.ChassisTrustFile} {
		g.Expect(trust.Data[file]).To(ContainSubstring("BEGIN CERTIFICATE"), file)
	}
}

// TestExpiredCertificatesAreReplaced advances the operator's clock by more than a leaf's lifetime.
func TestExpiredCertificatesAreReplaced(t *testing.T) {
	s := installed(t)
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
	s.secretsKept(t)
}

// TestAllCertificatesAreIssuedAgainAfterYears advances the clock beyond the lifetime of all CAs and of all certificates
// that they have signed. No certificate is valid then.
func TestAllCertificatesAreIssuedAgainAfterYears(t *testing.T) {
	s := newInstallation(t)
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

// lost follows the instructions for lost keys in docs/operations/install.md. The operator's clock is the real time again, at which
// the existing CAs are not valid yet.
func (s *scenario) lost(t *testing.T) {
	g := newG(t)
	before := s.signers(t)
	s.ahead.Store(0)
	for _, name := range certs.Authorities {
		g.Expect(s.admin.Delete(t.Context(), s.named(&corev1.Secret{}, certs.SecretPrefix+name))).To(Succeed())
	}
	for _, name := range certs.Authorities {
		g.Eventually(s.exists(t, &corev1.Secret{}, certs.SecretPrefix+name)).Should(Succeed())
	}
	for name, id := range s.signers(t) {
		g.Expect(id).NotTo(Equal(before[name]))
	}
	g.Eventually(func() int { return len(s.trusted(t)) }).Should(Equal(3))
	g.Eventually(s.condition(t, "Progressing")).Should(HavePrefix("False AsSpecified"))
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
