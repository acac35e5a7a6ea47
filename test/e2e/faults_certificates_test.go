// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/test/cluster"
)

// operatorDeployment is the Deployment in config/.
const operatorDeployment = "kiln-operator"

// expireCertificates stops the operator, replaces the certificates of databases, northd and controllers by expired ones of the same
// CAs, and restarts all of them, so that no old connection survives. The returned function starts the operator again.
func expireCertificates(ctx context.Context, begin func()) func(context.Context) {
	GinkgoHelper()
	scaleOperator(ctx, 0)
	back := func(ctx context.Context) { scaleOperator(ctx, 1) }
	DeferCleanup(func(ctx SpecContext) { back(ctx) }, NodeTimeout(time.Minute)) // if the spec fails earlier
	secrets, err := suite.Cluster.CoreV1().Secrets(cluster.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/managed-by=kiln-operator"})
	Expect(err).NotTo(HaveOccurred())
	authorities, leaves := map[string]tls.Certificate{}, map[*corev1.Secret]tls.Certificate{} // by key ID; by Secret
	for i := range secrets.Items {
		data := secrets.Items[i].Data
		if len(data[corev1.TLSCertKey]) == 0 {
			continue // only a trust bundle
		}
		pair, err := tls.X509KeyPair(data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey])
		Expect(err).NotTo(HaveOccurred(), secrets.Items[i].Name)
		if pair.Leaf.IsCA {
			authorities[string(pair.Leaf.SubjectKeyId)] = pair
		} else {
			leaves[&secrets.Items[i]] = pair
		}
	}
	Expect(len(leaves)).To(BeNumerically(">=", 4), "both databases, northd and controllers have one each")
	for secret, pair := range leaves {
		secret.Data[corev1.TLSCertKey] = expired(pair.Leaf, authorities[string(pair.Leaf.AuthorityKeyId)])
		_, err := suite.Cluster.CoreV1().Secrets(cluster.Namespace).Update(ctx, secret, metav1.UpdateOptions{})
		Expect(err).NotTo(HaveOccurred())
	}
	begin()
	for _, workload := range []string{trialDatabases[0].workload, trialDatabases[1].workload, "ovn-central-northd", "kube-ovn-controller"} {
		killAll(workload)(ctx, nil)
	}
	return back
}

// expired returns the certificate with its validity moved back by two years, signed by its CA, as PEM.
func expired(leaf *x509.Certificate, authority tls.Certificate) []byte {
	GinkgoHelper()
	Expect(authority.Leaf).NotTo(BeNil(), "the authority of %s", leaf.Subject)
	old := *leaf
	old.NotBefore, old.NotAfter = leaf.NotBefore.AddDate(-2, 0, 0), leaf.NotAfter.AddDate(-2, 0, 0)
	return signed(&old, authority)
}

// signed returns a certificate with the fields and the public key of leaf, signed by an authority, as PEM.
func signed(leaf *x509.Certificate, authority tls.Certificate) []byte {
	GinkgoHelper()
	der, err := x509.CreateCertificate(rand.Reader, leaf, authority.Leaf, leaf.PublicKey, authority.PrivateKey)
	Expect(err).NotTo(HaveOccurred())
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// scaleOperator scales the operator and waits until it has that number of pods.
func scaleOperator(ctx context.Context, replicas int32) {
	GinkgoHelper()
	deployments := suite.Cluster.AppsV1().Deployments(cluster.Namespace)
	scale, err := deployments.GetScale(ctx, operatorDeployment, metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	scale.Spec.Replicas = replicas
	_, err = deployments.UpdateScale(ctx, operatorDeployment, scale, metav1.UpdateOptions{})
	Expect(err).NotTo(HaveOccurred())
	Eventually(func(g Gomega) {
		pods, err := suite.Cluster.PodsOf(ctx, operatorDeployment)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(pods).To(HaveLen(int(replicas)))
	}).WithContext(ctx).WithTimeout(time.Minute).WithPolling(everyArrival).Should(Succeed())
}
