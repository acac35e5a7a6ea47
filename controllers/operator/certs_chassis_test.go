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
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/controllers/operator/certs"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/serving/pki"
)

var chassisUsages = []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth, certificatesv1.UsageDigitalSignature}

func TestChassisCertificatesGoToTheirOwnNodesOnly(t *testing.T) {
	w := &theWorld
	w.operator(t)
	authority := w.chassisAuthority(t)
	w.letCreateRequests(t)
	w.createNode(t, "worker-1")
	ours := "system:serviceaccount:" + testNamespace + ":" + render.OpenVSwitchAccount
	for _, c := range []struct {
		name     string
		user     string
		node     []string
		request  x509.CertificateRequest
		usages   []certificatesv1.KeyUsage
		lifetime *int32
		denied   string
	}{
		{
			name: "the node of the token", user: ours, node: []string{"worker-1"},
			request: x509.CertificateRequest{Subject: pkix.Name{CommonName: "worker-1", Organization: []string{"system:masters"}}},
		},
		{
			name: "a shorter life when asked for", user: ours, node: []string{"worker-1"}, lifetime: new(int32(3600)),
			request: x509.CertificateRequest{Subject: pkix.Name{CommonName: "worker-1"}},
		},
		{
			name: "another node", user: ours, node: []string{"worker-1"},
			request: x509.CertificateRequest{Subject: pkix.Name{CommonName: "worker-2"}},
			denied:  `the common name is "worker-2", but the requester runs on node "worker-1"`,
		},
		{
			name: "a node that was deleted", user: ours, node: []string{"deleted"},
			request: x509.CertificateRequest{Subject: pkix.Name{CommonName: "deleted"}},
			denied:  `node "deleted" does not exist`,
		},
		{
			name: "a token of no node", user: ours,
			request: x509.CertificateRequest{Subject: pkix.Name{CommonName: "worker-1"}},
			denied:  "not bound to a node",
		},
		{
			name: "another account", user: "system:serviceaccount:default:ovs-ovn", node: []string{"worker-1"},
			request: x509.CertificateRequest{Subject: pkix.Name{CommonName: "worker-1"}},
			denied:  "the requester is",
		},
		{
			name: "alternative names", user: ours, node: []string{"worker-1"},
			request: x509.CertificateRequest{Subject: pkix.Name{CommonName: "worker-1"}, DNSNames: []string{"ovn-sb"}},
			denied:  "alternative names",
		},
		{
			name: "a server's usage", user: ours, node: []string{"worker-1"},
			usages:  append(chassisUsages, certificatesv1.UsageServerAuth),
			request: x509.CertificateRequest{Subject: pkix.Name{CommonName: "worker-1"}},
			denied:  `"server auth" is not for a chassis`,
		},
		{
			name: "too few usages", user: ours, node: []string{"worker-1"}, usages: chassisUsages[:1],
			request: x509.CertificateRequest{Subject: pkix.Name{CommonName: "worker-1"}},
			denied:  `"digital signature" is missing`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newG(t)
			usages := c.usages
			if usages == nil {
				usages = chassisUsages
			}
			request := w.request(t, c.user, c.node, &c.request, func(s *certificatesv1.CertificateSigningRequestSpec) {
				s.Usages, s.ExpirationSeconds = usages, c.lifetime
			})
			g.Eventually(func() bool {
				g.Expect(w.admin.Get(t.Context(), client.ObjectKeyFromObject(request), request)).To(Succeed())
				return decided(request, certificatesv1.CertificateDenied) || len(request.Status.Certificate) > 0
			}).Should(BeTrue())
			if c.denied != "" {
				g.Expect(request.Status.Conditions[0].Message).To(ContainSubstring(c.denied))
				g.Expect(request.Status.Certificate).To(BeEmpty())
				return
			}
			chain, err := pki.ParseCertificates(request.Status.Certificate)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(chain).To(HaveLen(1))
			_, err = chain[0].Verify(x509.VerifyOptions{Roots: authority.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(chain[0].Subject.String()).To(Equal("CN=worker-1"), "nothing but the name is taken from the request")
			life := pki.LeafLifetime
			if c.lifetime != nil {
				life = time.Duration(*c.lifetime) * time.Second
			}
			g.Expect(chain[0].NotAfter).To(BeTemporally("~", time.Now().Add(life), time.Minute))
		})
	}
}

// decided reports whether a request has a condition of this type.
func decided(request *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType) bool {
	return slices.ContainsFunc(request.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool { return c.Type == kind })
}

// chassisAuthority returns the CA that the operator created. If no earlier test created an OVNCluster, it creates a CA.
func (w *world) chassisAuthority(t *testing.T) *pki.Authority {
	t.Helper()
	key := client.ObjectKey{Namespace: testNamespace, Name: certs.SecretPrefix + certs.Chassis}
	var secret corev1.Secret
	err := w.admin.Get(t.Context(), key, &secret)
	if client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	if err == nil {
		a, err := pki.ParseAuthority(secret.Data)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	a, err := pki.NewAuthority("kiln-sb-client", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	data, err := a.Data()
	if err != nil {
		t.Fatal(err)
	}
	secret = corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: key.Name, Namespace: key.Namespace}, Type: corev1.SecretTypeTLS, Data: data,
	}
	if err := w.admin.Create(t.Context(), &secret); err != nil {
		t.Fatal(err)
	}
	return a
}

// createNode creates a Node, if it does not exist, until the end of the test.
func (w *world) createNode(t *testing.T, name string) {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := w.admin.Create(t.Context(), node); apierrors.IsAlreadyExists(err) {
		return
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.admin.Delete(context.Background(), node); err != nil {
			t.Error(err)
		}
	})
}

// letCreateRequests grants every account the right to create certificate requests until the end of the test. ovs-ovn has
// this right by its component's role.
func (w *world) letCreateRequests(t *testing.T) {
	t.Helper()
	if err := w.createFile(t.Context(), "testdata/requesters.yaml"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		meta := metav1.ObjectMeta{Name: "requesters"}
		for _, o := range []client.Object{&rbacv1.ClusterRoleBinding{ObjectMeta: meta}, &rbacv1.ClusterRole{ObjectMeta: meta}} {
			if err := w.admin.Delete(context.Background(), o); err != nil {
				t.Error(err)
			}
		}
	})
}

// request creates a request as a user whose token is bound to a pod on the node.
func (w *world) request(t *testing.T, user string, node []string, template *x509.CertificateRequest,
	change func(*certificatesv1.CertificateSigningRequestSpec),
) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	config := rest.CopyConfig(w.config)
	if user != "" {
		config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
		if node != nil {
			config.Impersonate.Extra = map[string][]string{"authentication.kubernetes.io/node-name": node}
		}
	}
	c, err := client.New(config, client.Options{Scheme: w.admin.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	request := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "chassis-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: render.ChassisSigner, Request: encodeRequest(t, template),
		},
	}
	change(&request.Spec)
	newG(t).Eventually(func() error { // the API server applies changed rights with a delay
		err := c.Create(t.Context(), request)
		if err != nil && !apierrors.IsForbidden(err) {
			t.Fatal(err)
		}
		return err
	}).Should(Succeed())
	return request
}

func encodeRequest(t *testing.T, template *x509.CertificateRequest) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	request, err := pki.EncodeRequest(template, key)
	if err != nil {
		t.Fatal(err)
	}
	return request
}
