// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"regexp"
	"testing"

	"github.com/kiln-net/kiln/hack/lab/progress"
)

func TestOnlyTestsThatNoNetworkCouldPassAreLeftOut(t *testing.T) {
	skip := regexp.MustCompile(skipElsewhere(progress.New(io.Discard)))
	for name, left := range map[string]bool{
		"[sig-network] LoadBalancers [Feature:LoadBalancer] should only allow access from service loadbalancer source ranges [Slow]": true,
		"[sig-network] Networking should provide Internet connection for containers using DNS [Feature:Networking-DNS]":              true,
		"[sig-network] Networking should check kube-proxy urls":                                                                      true,
		"[sig-network] KubeProxy should set TCP CLOSE_WAIT timeout [Privileged]":                                                     true,
		"[sig-network] Services should work after restarting apiserver [Disruptive]":                                                 true,
		"[sig-network] Services should implement service.kubernetes.io/service-proxy-name":                                           false,
		"[sig-network] Services should respect internalTrafficPolicy=Local Pod to Pod":                                               false,
		"[sig-network] Netpol NetworkPolicy between server and client should support allow-all policy [Feature:NetworkPolicy]":       false,
		"[sig-network] Proxy version v1 should proxy through a service and a pod [Conformance]":                                      false,
	} {
		if skip.MatchString(name) != left {
			t.Errorf("left out: %t, want %t: %s", !left, left, name)
		}
	}
}
