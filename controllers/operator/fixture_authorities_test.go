// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/controllers/operator/certs"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/serving/pki"
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

// signers returns the subject key identifiers of the CAs, which change with their keys.
func (s *scenario) signers(t *testing.T) map[string]string {
	all := map[string]string{}
	for _, name := range certs.Authorities {
		all[name] = fmt.Sprintf("%x", s.leaf(t, certs.SecretPrefix+name).SubjectKeyId)
	}
	return all
}

// trusted returns the CA certificates that the northbound database trusts.
func (s *scenario) trusted(t *testing.T) []*x509.Certificate {
	t.Helper()
	var secret corev1.Secret
	if err := s.exists(t, &secret, render.Northbound.Secret)(); err != nil {
		t.Fatal(err)
	}
	all, err := pki.ParseCertificates(secret.Data[pki.TrustKey])
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// wait advances the operator's clock and triggers a pass. The operator would also wake up by itself.
func (s *scenario) wait(t *testing.T, d time.Duration) {
	t.Helper()
	s.ahead.Add(int64(d))
	s.poke(t, fmt.Sprint(s.ahead.Load()))
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
