// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services_test

import (
	"fmt"
	"net"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kiln-net/kiln/agent/services"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
)

// healthOf returns the HTTP status of a Service's health check; 0 if no server listens.
func healthOf(s *corev1.Service) int {
	response, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/healthz", s.Spec.HealthCheckNodePort))
	if err != nil {
		return 0
	}
	_ = response.Body.Close()
	return response.StatusCode
}

func local(s *corev1.ServiceSpec) {
	s.Type, s.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal
}

// When agents replace kube-proxy, it still listens on the ports of health checks until it ends.
func TestHealthChecksAreAnsweredOnceTheirPortIsFree(t *testing.T) {
	w := emptyWorld(t)
	s := w.service("checked", local)
	w.serves("checked", here(w.pod("a", 2)))
	former, err := net.Listen("tcp", fmt.Sprintf(":%d", s.Spec.HealthCheckNodePort))
	must.Succeed(t, err)
	w.start()
	w.expect(nil, "tcp", clusterIP(s), nodeIPs[0].Addr(), "a")
	must.Succeed(t, former.Close())
	w.eventually(func() string {
		if got := healthOf(s); got != http.StatusOK {
			return fmt.Sprintf("the health check is %d", got)
		}
		return ""
	})
}

// The Service is deleted before a pass that fails, because the table was deleted. The next pass rewrites the table and does not find the
// Service.
func TestHealthChecksEndWithTheirService(t *testing.T) {
	w := newWorld(t)
	s := w.service("checked", local)
	w.serves("checked", here(w.pod("a", 2)))
	w.eventually(func() string {
		if got := healthOf(s); got != http.StatusOK {
			return fmt.Sprintf("the health check is %d", got)
		}
		return ""
	})
	nodetest.NFT(t, "delete table inet "+services.Table)
	w.delete(s)
	w.eventually(func() string {
		if _, err := nodetest.TryNFT("list table inet " + services.Table); err != nil {
			return err.Error()
		}
		if got := healthOf(s); got != 0 {
			return fmt.Sprintf("the health check of a deleted Service answers %d", got)
		}
		return ""
	})
}
