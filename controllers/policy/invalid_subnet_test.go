// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"fmt"
	"testing"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
)

// TestPoliciesApplyWhileASubnetIsInvalid: sets of policies and groups follow the pods of a subnet with an invalid spec, also after the northbound
// database was lost.
func TestPoliciesApplyWhileASubnetIsInvalid(t *testing.T) {
	w := newWorld(t)
	process := w.start()
	web, other := w.pod("default", "web", "app=web"), w.pod("default", "other", "app=other")
	s := &kubeovnv1.Subnet{}
	s.Name = "ovn-default"
	w.Get(s)
	w.Change(s, func() {
		s.Spec.ACLs = []kubeovnv1.ACL{{Direction: "to-lport", Priority: 1, Match: "ip4.src = 10.0.0.1", Action: "drop"}}
	})
	w.Refuse(s, "acls[0]: write == to compare")

	np := w.policyOf("default", "web", "podSelector: {matchLabels: {app: web}}")
	isolates := func(ports string) {
		t.Helper()
		w.expect(np, map[string]string{"ingress/default": "drop outport == [" + ports + "] && ip"})
	}
	isolates("web.default")
	w.pod("default", "fresh", "app=web")
	isolates("fresh.default web.default")
	w.Change(other, func() { other.Labels["app"] = "web" })
	isolates("fresh.default other.default web.default")

	w.group("guard", "ingressRules: [{ipVersion: ipv4, policy: allow, priority: 1, protocol: tcp, portRangeMin: 80, portRangeMax: 81, remoteType: address, remoteAddress: 10.16.0.0/16}]")
	w.Change(web, func() { web.Annotations[kubeovnv1.AnnotationGroups.Key()] = "guard" })
	guards := func() {
		t.Helper()
		w.Eventually(func() string {
			got := w.acls("SecurityGroup//guard")
			if want := "map[ingress/0:allow-related outport == [web.default] && ip4 && ip4.src == 10.16.0.0/16 && tcp && 80 <= tcp.dst <= 81]"; fmt.Sprint(got) != want {
				return fmt.Sprintf("the group has %v, want %s", got, want)
			}
			return ""
		})
	}
	guards()
	process.Stop()
	w.Database = nbtest.Start(w.T)
	w.start()
	isolates("fresh.default other.default web.default")
	guards()
}
