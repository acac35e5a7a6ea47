// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"fmt"
	"maps"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/certs"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/serving/pki"
	"github.com/kiln-net/kiln/internal/testing/gate"
)

func TestInvalidIssuersAreRefused(t *testing.T) {
	s := installed(t)
	g := newG(t)
	for want, change := range map[string]func(*v1alpha1.Certificates){
		"kind must be Issuer or ClusterIssuer": func(c *v1alpha1.Certificates) {
			c.IssuerRef = &v1alpha1.IssuerReference{Name: "organisation", Kind: "Secret"}
		},
		"authorityDuration is 24h or longer": func(c *v1alpha1.Certificates) { c.AuthorityDuration = &metav1.Duration{Duration: time.Hour} },
		"spec.certificates.issuerRef.name":   func(c *v1alpha1.Certificates) { c.IssuerRef = &v1alpha1.IssuerReference{} },
	} {
		g.Expect(s.setIssuer(t, change)).To(MatchError(ContainSubstring(want)))
	}
}

// TestAnIssuerNeedsCertManager applies the sample without cert-manager in the cluster.
func TestAnIssuerNeedsCertManager(t *testing.T) {
	s := installed(t)
	g := newG(t)
	before := s.signers(t)
	g.Expect(s.applyIssuer(t)).To(Succeed())
	g.Eventually(s.condition(t, "Degraded")).Should(SatisfyAll(HavePrefix("True AuthoritiesNotIssued"),
		ContainSubstring("install cert-manager"), ContainSubstring("spec.certificates.issuerRef")))
	g.Expect(s.condition(t, "Available")()).To(HavePrefix("True"))
	g.Expect(s.signers(t)).To(Equal(before))
	s.installCertManager(t)
	g.Eventually(s.condition(t, "Progressing")).Should(SatisfyAll(HavePrefix("True WaitingForIssuer"),
		ContainSubstring("kiln-issued-nb-server: cert-manager has not said anything")))
	g.Expect(s.condition(t, "Degraded")()).To(HavePrefix("False"))
	for _, name := range certs.Authorities {
		order := s.ordered(t, name)
		g.Expect(order.Object["spec"]).To(SatisfyAll(HaveKeyWithValue("isCA", true), HaveKeyWithValue("duration", "8760h0m0s"),
			HaveKeyWithValue("issuerRef", map[string]any{"name": "organisation", "kind": "ClusterIssuer", "group": "cert-manager.io"})))
		g.Expect(metav1.IsControlledBy(order, s.cluster(t))).To(BeTrue())
	}
}

func TestAMissingIssuerIsReported(t *testing.T) {
	s := installed(t)
	s.order(t)
	g := newG(t)
	c := s.certManager(t, "organisation")
	before := s.signers(t)
	c.refuse(t, certs.Chassis, `Referenced "ClusterIssuer" not found: clusterissuer.cert-manager.io "organisation" not found`)
	g.Eventually(s.condition(t, "Degraded")).Should(SatisfyAll(HavePrefix("True AuthoritiesNotIssued"),
		ContainSubstring("authority sb-client: Certificate kube-system/kiln-issued-sb-client: Referenced \"ClusterIssuer\" not found"),
		ContainSubstring("the authorities that are there stay")))
	g.Expect(s.signers(t)).To(Equal(before))
}

func TestACertificateThatIsNotACAIsNotUsed(t *testing.T) {
	s := installed(t)
	s.order(t)
	g := newG(t)
	c := s.certManager(t, "organisation")
	before := s.signers(t)
	c.issue(t, certs.Northbound, false)
	g.Eventually(s.condition(t, "Degraded")).Should(ContainSubstring(
		"the authority in Secret kube-system/kiln-issued-nb-server cannot be used: it is not the certificate of an authority"))
	g.Expect(s.signers(t)).To(Equal(before))
}

// TestAnUnavailableWebhookBlocksNothing checks that other phases do not wait while cert-manager's webhook is unavailable,
// which makes all writes of Certificates fail.
func TestAnUnavailableWebhookBlocksNothing(t *testing.T) {
	s := installed(t)
	s.order(t)
	g := newG(t)
	url, none := "https://127.0.0.1:1/validate", admissionv1.SideEffectClassNone
	webhook := &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "cert-manager-webhook"},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "webhook.cert-manager.io", ClientConfig: admissionv1.WebhookClientConfig{URL: &url}, SideEffects: &none,
			AdmissionReviewVersions: []string{"v1"},
			Rules: []admissionv1.RuleWithOperations{{
				Operations: []admissionv1.OperationType{admissionv1.OperationAll},
				Rule:       admissionv1.Rule{APIGroups: []string{"cert-manager.io"}, APIVersions: []string{"v1"}, Resources: []string{"certificates"}},
			}},
		}},
	}
	g.Expect(s.admin.Create(t.Context(), webhook)).To(Succeed())
	before := s.signers(t)
	g.Eventually(func() string { // the API server applies the webhook with a delay
		ref := &v1alpha1.IssuerReference{Name: fmt.Sprint("try-", time.Now().UnixNano())}
		g.Expect(s.setIssuer(t, func(c *v1alpha1.Certificates) { c.IssuerRef = ref })).To(Succeed())
		g.Eventually(func() bool { // a pass may take longer than the polling interval
			c := s.cluster(t)
			return c.Status.ObservedGeneration == c.Generation
		}).Should(BeTrue())
		return s.condition(t, "Degraded")()
	}).Should(ContainSubstring("failed calling webhook"))
	g.Expect(s.admin.Delete(t.Context(), s.named(&corev1.ConfigMap{}, render.TrustConfigMap))).To(Succeed())
	g.Eventually(s.exists(t, &corev1.ConfigMap{}, render.TrustConfigMap)).Should(Succeed())
	g.Expect(s.condition(t, "Available")()).To(HavePrefix("True"))
	g.Expect(s.signers(t)).To(Equal(before))
	g.Expect(s.admin.Delete(t.Context(), webhook)).To(Succeed())
	g.Eventually(s.condition(t, "Degraded")).Should(HavePrefix("False"))
}

// TestCAsOfAnIssuerAreTrustedBeforeTheySign has first and renewed CAs of an issuer. It also checks that a restarted operator
// changes nothing and that no secret is published.
func TestCAsOfAnIssuerAreTrustedBeforeTheySign(t *testing.T) {
	gate.Skip(t, gate.OperatorLong)
	s := newInstallation(t)
	s.order(t)
	s.issued(t)
	s.restarted(t)
	s.renewed(t)
	s.secretsKept(t)
}

// TestTheIssuerChanges names another issuer, and none after that.
func TestTheIssuerChanges(t *testing.T) {
	gate.Skip(t, gate.OperatorLong)
	s := newInstallation(t)
	s.issue(t)
	s.ofAnotherIssuer(t)
	s.givenUp(t)
}

// TestCAsOutliveTheirIssuer has an issuer that does not renew CAs, and then no cert-manager.
func TestCAsOutliveTheirIssuer(t *testing.T) {
	gate.Skip(t, gate.OperatorLong)
	s := newInstallation(t)
	s.issue(t)
	s.notRenewed(t)
	s.certManagerGone(t)
}

// issued checks that the new CAs of an issuer are trusted first and sign later.
func (s *scenario) issued(t *testing.T) {
	g := newG(t)
	c := s.certManager(t, "organisation")
	before, certificate := s.signers(t), s.leaf(t, render.Northbound.Secret)
	c.issueAll(t)
	g.Eventually(s.condition(t, "Progressing")).Should(HavePrefix("True ReplacingAuthorities"))
	g.Eventually(s.condition(t, "Degraded")).Should(HavePrefix("False"))
	g.Expect(s.signers(t)).To(Equal(before))
	g.Expect(s.leaf(t, render.Northbound.Secret).Equal(certificate)).To(BeTrue(), "a certificate that not everyone trusts yet")
	g.Eventually(func() int { return len(s.trusted(t)) }).Should(Equal(6), "three roles, each by two authorities")
	s.expectAnchors(t, c)

	s.wait(t, time.Hour+time.Minute)
	g.Eventually(s.condition(t, "Progressing")).Should(HavePrefix("False AsSpecified"))
	for name, id := range s.signers(t) {
		g.Expect(id).NotTo(Equal(before[name]))
		var made corev1.Secret
		g.Expect(s.exists(t, &made, certs.IssuedPrefix+name)()).To(Succeed())
		ours, err := pki.ParseCertificates(made.Data[pki.CertificateKey])
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(id).To(Equal(fmt.Sprintf("%x", ours[0].SubjectKeyId)))
	}
	leaf := s.leaf(t, render.Northbound.Secret)
	g.Expect(leaf.Equal(certificate)).To(BeFalse())
	g.Expect(leaf.CheckSignatureFrom(s.leaf(t, certs.SecretPrefix+certs.Northbound))).To(Succeed())
	g.Expect(s.trusted(t)).To(HaveLen(6), "holders of old certificates are still trusted")
	s.expectAnchors(t, c)
}

// expectAnchors checks that the issuer's root is not trusted: with it, every role could act as every other.
func (s *scenario) expectAnchors(t *testing.T, c certManager) {
	t.Helper()
	for _, anchor := range s.trusted(t) {
		if anchor.CheckSignatureFrom(anchor) != nil || anchor.Equal(c.root) {
			t.Errorf("%s, by %s, is trusted", anchor.Subject, anchor.Issuer)
		}
	}
}

// restarted checks that an operator without its in-memory state changes nothing.
func (s *scenario) restarted(t *testing.T) {
	g := newG(t)
	before, orders := s.stable(t), s.orders(t)
	g.Expect(orders).To(HaveLen(len(certs.Authorities)))
	again := *s.operate
	applier := *again.applier
	applier.Forget()
	again.applier = &applier
	_, err := again.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Name: "default"}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(s.versions(t)).To(Equal(before))
	g.Expect(s.orders(t)).To(Equal(orders))
}

func (s *scenario) renewed(t *testing.T) {
	g := newG(t)
	before := s.signers(t)
	s.certManager(t, "organisation").issue(t, certs.Southbound, true)
	g.Eventually(s.condition(t, "Progressing")).Should(HavePrefix("True ReplacingAuthorities"))
	g.Expect(s.signers(t)).To(Equal(before))
	s.wait(t, time.Hour+time.Minute)
	want := maps.Clone(before)
	delete(want, certs.Southbound)
	g.Eventually(s.condition(t, "Progressing")).Should(HavePrefix("False AsSpecified"))
	after := s.signers(t)
	g.Expect(after[certs.Southbound]).NotTo(Equal(before[certs.Southbound]))
	delete(after, certs.Southbound)
	g.Expect(after).To(Equal(want), "others were replaced as well")
}

func (s *scenario) ofAnotherIssuer(t *testing.T) {
	g := newG(t)
	before := s.signers(t)
	g.Expect(s.setIssuer(t, func(c *v1alpha1.Certificates) { c.IssuerRef = &v1alpha1.IssuerReference{Name: "another"} })).To(Succeed())
	g.Eventually(s.condition(t, "Progressing")).Should(HavePrefix("True WaitingForIssuer"))
	for _, name := range certs.Authorities {
		g.Eventually(func() map[string]any { return issuerOf(s.ordered(t, name)) }).Should(
			Equal(map[string]any{"name": "another", "kind": "Issuer", "group": "cert-manager.io"}))
	}
	g.Expect(s.signers(t)).To(Equal(before))
	s.certManager(t, "another").issueAll(t)
	g.Eventually(s.condition(t, "Progressing")).Should(HavePrefix("True ReplacingAuthorities"))
	s.wait(t, time.Hour+time.Minute)
	g.Eventually(s.condition(t, "Progressing")).Should(HavePrefix("False AsSpecified"))
	for name, id := range s.signers(t) {
		g.Expect(id).NotTo(Equal(before[name]))
	}
}

func (s *scenario) notRenewed(t *testing.T) {
	g := newG(t)
	before := s.signers(t)
	defer s.ahead.Store(s.ahead.Load())
	s.wait(t, 320*24*time.Hour)
	g.Eventually(s.condition(t, "Degraded")).Should(SatisfyAll(HavePrefix("True AuthoritiesNotIssued"),
		ContainSubstring("has no successor"), ContainSubstring("see why cert-manager does not renew")))
	g.Expect(s.signers(t)).To(Equal(before))
}

// certManagerGone uninstalls cert-manager and installs it again.
func (s *scenario) certManagerGone(t *testing.T) {
	g := newG(t)
	s.wait(t, 0)
	g.Eventually(s.condition(t, "Degraded")).Should(HavePrefix("False"))
	g.Eventually(s.condition(t, "Progressing")).Should(HavePrefix("False AsSpecified"))
	before := s.signers(t)
	g.Expect(s.uninstallCertManager(t.Context())).To(Succeed())
	g.Eventually(s.condition(t, "Degraded")).Should(ContainSubstring("install cert-manager"))
	g.Expect(s.signers(t)).To(Equal(before))
	s.installCertManager(t)
	g.Eventually(s.condition(t, "Degraded")).Should(HavePrefix("False"))
	for _, name := range certs.Authorities {
		s.ordered(t, name)
	}
	g.Expect(s.signers(t)).To(Equal(before))
}

// givenUp checks that the operator's own CAs return in the same steps, and that no Certificates remain.
func (s *scenario) givenUp(t *testing.T) {
	g := newG(t)
	before := s.signers(t)
	g.Expect(s.setIssuer(t, func(c *v1alpha1.Certificates) { c.IssuerRef = nil })).To(Succeed())
	g.Eventually(s.condition(t, "Progressing")).Should(HavePrefix("True ReplacingAuthorities"))
	g.Expect(s.signers(t)).To(Equal(before))
	g.Eventually(func() int { return s.countOrders(t) }).Should(BeZero())
	s.wait(t, time.Hour+time.Minute)
	g.Eventually(s.condition(t, "Progressing")).Should(HavePrefix("False AsSpecified"))
	for name, id := range s.signers(t) {
		g.Expect(id).NotTo(Equal(before[name]))
		own := s.leaf(t, certs.SecretPrefix+name)
		g.Expect(own.NotAfter).To(BeTemporally(">", s.now().Add(pki.AuthorityLifetime-24*time.Hour)))
	}
}
