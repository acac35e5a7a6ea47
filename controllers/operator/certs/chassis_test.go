// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"strings"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/serving/pki"
)

// TestRefusedRequests changes a valid request. An approval by another user changes nothing.
func TestRefusedRequests(t *testing.T) {
	valid := certificatesv1.CertificateSigningRequestSpec{
		SignerName: render.ChassisSigner, Username: "system:serviceaccount:kube-system:" + render.OpenVSwitchAccount,
		Extra:   map[string]certificatesv1.ExtraValue{nodeNameClaim: {"worker-1"}},
		Request: encode(t, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "worker-1"}}),
		Usages:  []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth, certificatesv1.UsageDigitalSignature},
	}
	for _, tt := range []struct {
		name   string
		change func(*certificatesv1.CertificateSigningRequestSpec)
		want   string // of the refusal; empty if there is none
	}{
		{"valid", func(*certificatesv1.CertificateSigningRequestSpec) {}, ""},
		{"of another user", func(s *certificatesv1.CertificateSigningRequestSpec) { s.Username = "eve" }, `the requester is "eve"`},
		{"with a token of no node", func(s *certificatesv1.CertificateSigningRequestSpec) { s.Extra = nil }, "not bound to a node"},
		{"with a token of two nodes", func(s *certificatesv1.CertificateSigningRequestSpec) {
			s.Extra = map[string]certificatesv1.ExtraValue{nodeNameClaim: {"worker-1", "worker-2"}}
		}, "not bound to a node"},
		{"for another node", func(s *certificatesv1.CertificateSigningRequestSpec) {
			s.Extra = map[string]certificatesv1.ExtraValue{nodeNameClaim: {"worker-2"}}
		}, `the common name is "worker-1", but the requester runs on node "worker-2"`},
		{"that is no PEM", func(s *certificatesv1.CertificateSigningRequestSpec) { s.Request = []byte("x") }, "not one PEM block"},
		{"with text after it", func(s *certificatesv1.CertificateSigningRequestSpec) { s.Request = append(s.Request, s.Request...) }, "not one PEM block"},
		{"that is no PKCS #10", func(s *certificatesv1.CertificateSigningRequestSpec) {
			s.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: []byte("x")})
		}, "cannot be parsed"},
		{"with alternative names", func(s *certificatesv1.CertificateSigningRequestSpec) {
			s.Request = encode(t, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "worker-1"}, DNSNames: []string{"ovn-sb"}})
		}, "alternative names"},
		{"of a server", func(s *certificatesv1.CertificateSigningRequestSpec) {
			s.Usages = append(s.Usages[:2:2], certificatesv1.UsageServerAuth)
		}, `"server auth" is not for a chassis`},
		{"with too few usages", func(s *certificatesv1.CertificateSigningRequestSpec) { s.Usages = s.Usages[:1] }, `"digital signature" is missing`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			request := &certificatesv1.CertificateSigningRequest{Spec: *valid.DeepCopy()}
			request.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{
				{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Human", Message: "looks good"},
			}
			tt.change(&request.Spec)
			_, refusal := (&ChassisReconciler{Namespace: "kube-system"}).check(request)
			if tt.want == "" && refusal != nil || tt.want != "" && (refusal == nil || !strings.Contains(refusal.Error(), tt.want)) {
				t.Errorf("refusal %v, want %q", refusal, tt.want)
			}
		})
	}
}

// TestAnApprovedRequestThatIsRefusedFails covers a request that another approver approved before the operator decided.
func TestAnApprovedRequestThatIsRefusedFails(t *testing.T) {
	request := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "approved"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: render.ChassisSigner, Username: "eve", Request: encode(t, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "worker-1"}}),
		},
		Status: certificatesv1.CertificateSigningRequestStatus{Conditions: []certificatesv1.CertificateSigningRequestCondition{
			{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Human", Message: "looks good"},
		}},
	}
	c := fake.NewClientBuilder().WithObjects(request).WithStatusSubresource(request).Build()
	r := &ChassisReconciler{Client: c, APIReader: c, Namespace: "kube-system", Now: time.Now}
	if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(request)}); err != nil {
		t.Fatal(err)
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(request), request); err != nil {
		t.Fatal(err)
	}
	if !decided(request, certificatesv1.CertificateFailed) || len(request.Status.Certificate) > 0 {
		t.Errorf("conditions %+v, certificate %q", request.Status.Conditions, request.Status.Certificate)
	}
}

var key = sync.OnceValues(func() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) })

func encode(t *testing.T, template *x509.CertificateRequest) []byte {
	t.Helper()
	signer, err := key()
	if err != nil {
		t.Fatal(err)
	}
	request, err := pki.EncodeRequest(template, signer)
	if err != nil {
		t.Fatal(err)
	}
	return request
}
