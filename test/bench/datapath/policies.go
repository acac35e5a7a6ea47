// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// policies measures the paths between pods again, with policies of the servers that allow the client by their last rule.
func (b *bench) policies(ctx context.Context, paths []path) error {
	paths = slices.DeleteFunc(slices.Clone(paths), func(p path) bool { return p.name != sameNode && p.name != acrossNodes })
	for _, of := range []struct {
		name  string
		rules []networkingv1.NetworkPolicyIngressRule
	}{
		{"100 rules", byPort(100)}, {"1,000 rules", byPort(1000)}, {"one rule of 1,000 peers", byPeer(1000)},
	} {
		policies := b.cluster.NetworkingV1().NetworkPolicies(namespace)
		_, err := policies.Create(ctx, &networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: "bench"},
			Spec:       networkingv1.NetworkPolicySpec{Ingress: of.rules, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}},
		}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("create a policy of %s: %w", of.name, err)
		}
		time.Sleep(10 * time.Second) // until all nodes have its flows
		with := slices.Clone(paths)
		for i := range with {
			with[i].name += ", " + of.name
		}
		if err := b.measure(ctx, with); err != nil {
			return err
		}
		if err := policies.Delete(ctx, "bench", metav1.DeleteOptions{}); err != nil {
			return fmt.Errorf("delete a policy of %s: %w", of.name, err)
		}
	}
	return nil
}

// byPort returns n rules for single ports, and one for the server's.
func byPort(n int) []networkingv1.NetworkPolicyIngressRule {
	var rules []networkingv1.NetworkPolicyIngressRule
	for i := range n {
		number := intstr.FromInt(10_000 + 2*i) // not neighbours, which would be one match
		rules = append(rules, networkingv1.NetworkPolicyIngressRule{
			Ports: []networkingv1.NetworkPolicyPort{{Port: &number}}, From: []networkingv1.NetworkPolicyPeer{network(netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}))},
		})
	}
	return append(rules, networkingv1.NetworkPolicyIngressRule{})
}

// byPeer returns a rule with n single addresses, and one for all pods.
func byPeer(n int) []networkingv1.NetworkPolicyIngressRule {
	var peers []networkingv1.NetworkPolicyPeer
	for i := range n {
		peers = append(peers, network(netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)})))
	}
	return []networkingv1.NetworkPolicyIngressRule{{From: peers}, {From: []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{}}}}}
}

func network(a netip.Addr) networkingv1.NetworkPolicyPeer {
	return networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: strings.Join([]string{a.String(), "32"}, "/")}}
}
