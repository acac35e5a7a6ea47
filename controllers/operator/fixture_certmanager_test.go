// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/certs"
	"github.com/kiln-net/kiln/internal/serving/pki"
	"github.com/kiln-net/kiln/internal/workload"
)

// certManager is a fake of cert-manager. It handles the operator's Certificates like a CA issuer with this name.
type certManager struct {
	*scenario
	issuer string
	root   *x509.Certificate
	key    *ecdsa.PrivateKey
}

func (s *scenario) certManager(t *testing.T, issuer string) certManager {
	t.Helper()
	c := certManager{scenario: s, issuer: issuer, key: ecdsaKey(t)}
	c.root = c.sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: issuer}, IsCA: true, KeyUsage: x509.KeyUsageCertSign, NotAfter: s.now().AddDate(20, 0, 0),
	}, c.key)
	return c
}

// installCertManager creates the definitions of cert-manager until the end of the test.
func (s *scenario) installCertManager(t *testing.T) {
	t.Helper()
	if err := s.createFile(t.Context(), filepath.Join("testdata", "cert-manager.yaml")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.uninstallCertManager(context.Background()); err != nil {
			t.Errorf("uninstall cert-manager: %v", err)
		}
	})
}

// uninstallCertManager deletes the definitions and, with them, all Certificates; Secrets stay.
func (s *scenario) uninstallCertManager(ctx context.Context) error {
	for _, name := range []string{certs.CertificateDefinition, "certificaterequests.cert-manager.io"} {
		d := workload.Untyped(definition("").GroupVersionKind())
		d.SetName(name)
		if err := s.admin.Delete(ctx, d); err != nil {
			return client.IgnoreNotFound(err)
		}
		err := wait.PollUntilContextTimeout(ctx, often, soon, true, func(ctx context.Context) (bool, error) {
			err := s.admin.Get(ctx, client.ObjectKeyFromObject(d), d)
			return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
		})
		if err != nil {
			return fmt.Errorf("wait for the end of %s: %w", name, err)
		}
	}
	return nil
}

// order names the issuer organisation and waits until the operator has created its Certificates.
func (s *scenario) order(t *testing.T) {
	t.Helper()
	s.installCertManager(t)
	g := newG(t)
	g.Expect(s.applyIssuer(t)).To(Succeed())
	g.Eventually(s.condition(t, "Progressing")).Should(HavePrefix("True WaitingForIssuer"))
}

// issue makes the CAs of the issuer organisation sign.
func (s *scenario) issue(t *testing.T) {
	t.Helper()
	s.order(t)
	s.certManager(t, "organisation").issueAll(t)
	g := newG(t)
	g.Eventually(s.condition(t, "Progressing")).Should(HavePrefix("True ReplacingAuthorities"))
	s.wait(t, time.Hour+time.Minute)
	g.Eventually(s.condition(t, "Progressing")).Should(HavePrefix("False AsSpecified"))
}

func ecdsaKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (c certManager) sign(t *testing.T, template *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	template.SerialNumber, template.NotBefore, template.BasicConstraintsValid = big.NewInt(time.Now().UnixNano()), c.now(), true
	parent := c.root
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), c.key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}

// issue creates the Secret of a Certificate, with a new key.
func (c certManager) issue(t *testing.T, authority string, isCA bool) {
	t.Helper()
	g := newG(t)
	order := c.ordered(t, authority)
	spec := order.Object["spec"].(map[string]any)
	duration, err := time.ParseDuration(spec["duration"].(string))
	g.Expect(err).NotTo(HaveOccurred())
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: spec["commonName"].(string)}, NotAfter: c.now().Add(duration), KeyUsage: x509.KeyUsageDigitalSignature,
	}
	if isCA {
		template.IsCA, template.KeyUsage = spec["isCA"].(bool), x509.KeyUsageCertSign
	}
	key := ecdsaKey(t)
	certificate := c.sign(t, template, key)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	g.Expect(err).NotTo(HaveOccurred())
	ref := spec["issuerRef"].(map[string]any)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: spec["secretName"].(string)}}
	err = c.admin.Get(t.Context(), client.ObjectKeyFromObject(secret), secret)
	g.Expect(client.IgnoreNotFound(err)).To(Succeed())
	labels, _, err := unstructured.NestedStringMap(spec, "secretTemplate", "labels")
	g.Expect(err).NotTo(HaveOccurred())
	secret.Labels = labels
	secret.Annotations = map[string]string{
		certs.IssuerNameAnnotation: ref["name"].(string), certs.IssuerKindAnnotation: ref["kind"].(string), certs.IssuerGroupAnnotation: ref["group"].(string),
	}
	secret.Type = corev1.SecretTypeTLS
	secret.Data = map[string][]byte{
		pki.CertificateKey: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw}),
		pki.PrivateKeyKey:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
		pki.TrustKey:       pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.root.Raw}),
	}
	if err != nil || secret.ResourceVersion == "" {
		g.Expect(c.admin.Create(t.Context(), secret)).To(Succeed())
		return
	}
	g.Expect(c.admin.Update(t.Context(), secret)).To(Succeed())
}

func (c certManager) issueAll(t *testing.T) {
	t.Helper()
	for _, name := range certs.Authorities {
		c.issue(t, name, true)
	}
}

// refuse reports for a Certificate the failure that cert-manager reports if the issuer does not exist.
func (c certManager) refuse(t *testing.T, authority, message string) {
	t.Helper()
	order := c.ordered(t, authority)
	request := workload.Untyped(certs.RequestKind)
	request.SetNamespace(testNamespace)
	request.SetName(order.GetName() + "-1")
	request.SetLabels(order.GetLabels())
	request.Object["spec"] = map[string]any{"issuerRef": issuerOf(order)}
	request.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(order, certs.CertificateKind)})
	g := newG(t)
	g.Expect(c.admin.Create(t.Context(), request)).To(Succeed())
	request.Object["status"] = map[string]any{"conditions": []any{
		map[string]any{"type": "Ready", "status": "False", "reason": "Pending", "message": message},
	}}
	g.Expect(c.admin.Status().Update(t.Context(), request)).To(Succeed())
}

func (s *scenario) ordered(t *testing.T, authority string) *unstructured.Unstructured {
	t.Helper()
	order := workload.Untyped(certs.CertificateKind)
	newG(t).Eventually(func() error {
		return s.admin.Get(t.Context(), client.ObjectKey{Namespace: testNamespace, Name: certs.IssuedPrefix + authority}, order)
	}).Should(Succeed())
	return order
}

func (s *scenario) setIssuer(t *testing.T, change func(*v1alpha1.Certificates)) error {
	t.Helper()
	cluster := s.cluster(t)
	before := cluster.DeepCopy()
	change(&cluster.Spec.Certificates)
	return s.admin.Patch(t.Context(), cluster, client.MergeFrom(before))
}

// applyIssuer applies the OVNCluster of config/components/cert-manager.
func (s *scenario) applyIssuer(t *testing.T) error {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "config", "components", "cert-manager", "kustomization.yaml"))
	if err != nil {
		return err
	}
	var component struct{ Patches []struct{ Patch string } }
	if err := yaml.Unmarshal(text, &component); err != nil {
		return err
	}
	oc := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(component.Patches[0].Patch), &oc.Object); err != nil {
		return err
	}
	return s.admin.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(oc), client.FieldOwner("kubectl"))
}

// orders returns the resource versions of the Certificates, by name.
func (s *scenario) orders(t *testing.T) map[string]string {
	t.Helper()
	var list unstructured.UnstructuredList
	list.SetGroupVersionKind(certs.CertificateKind)
	if err := s.admin.List(t.Context(), &list, client.InNamespace(testNamespace)); err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for i := range list.Items {
		all[list.Items[i].GetName()] = list.Items[i].GetResourceVersion()
	}
	return all
}

// countOrders counts the Certificates and their Secrets.
func (s *scenario) countOrders(t *testing.T) int {
	t.Helper()
	n := len(s.orders(t))
	for _, name := range certs.Authorities {
		if s.exists(t, &corev1.Secret{}, certs.IssuedPrefix+name)() == nil {
			n++
		}
	}
	return n
}

func issuerOf(u *unstructured.Unstructured) map[string]any {
	ref, _, _ := unstructured.NestedMap(u.Object, "spec", "issuerRef")
	return ref
}
