// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	certificatesv1 "k8s.io/client-go/kubernetes/typed/certificates/v1"

	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

// TestRequestsDoNotFloodTheAPIServer has the operator sign useless certificates: its clock and the node's differ, or its CA
// expires soon.
func TestRequestsDoNotFloodTheAPIServer(t *testing.T) {
	for name, until := range map[string]time.Duration{
		"a certificate that is not valid yet on this node":        3 * time.Hour,
		"a certificate that is no longer valid on this node":      -time.Hour,
		"a certificate most of whose lifetime is over, but valid": 30 * time.Minute,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				authority := supervisortest.NewAuthority(t, "chassis")
				dir := authority.TLSDir(t, "node-1", nil)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute) // in synctest's clock
				defer cancel()
				var filed atomic.Int32
				requests := &oneAtATime{anew: answerer(func(request *certificates.CertificateSigningRequest) {
					if filed.Add(1) == 200 {
						cancel()
					}
					block, _ := pem.Decode(request.Spec.Request)
					parsed, err := x509.ParseCertificateRequest(block.Bytes)
					if err != nil {
						t.Error(err)
						return
					}
					request.Status.Certificate = authority.SignUntil(t, "node-1", parsed.PublicKey, time.Now().Add(until))
				})}
				c := certificate{dir: dir, node: "node-1", requests: requests, log: logr.Discard()}
				c.run(ctx, func() {})
				if n := filed.Load(); n < 2 || n > 100 {
					t.Errorf("%d requests within ten minutes", n)
				}
				if _, err := c.load(); err != nil {
					t.Errorf("the certificate that was there is lost: %v", err)
				}
			})
		})
	}
}

// oneAtATime returns only the newest request, because the fake API server ignores field selectors.
type oneAtATime struct {
	certificatesv1.CertificateSigningRequestInterface
	anew answerer
}

type answerer func(*certificates.CertificateSigningRequest)

func (o *oneAtATime) Create(
	ctx context.Context, request *certificates.CertificateSigningRequest, options metav1.CreateOptions,
) (*certificates.CertificateSigningRequest, error) {
	o.CertificateSigningRequestInterface = answering(o.anew)
	return o.CertificateSigningRequestInterface.Create(ctx, request, options)
}
