// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package svc contains what the controller and agents compute alike about Services, so that pods and nodes reach the same ones: addresses,
// precedence, and the bounds of their cost.
package svc

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// ClusterIPs returns the addresses that the API server allocated to a Service: no other Service has them.
func ClusterIPs(s *corev1.Service) []netip.Addr { return addresses(s.Spec.ClusterIPs) }

// RequestedAddresses returns the addresses that a Service requests: its externalIPs, and the addresses of its load balancer. Several
// Services can request the same one.
func RequestedAddresses(s *corev1.Service) []netip.Addr {
	return unique(append(addresses(s.Spec.ExternalIPs), LoadBalancerAddresses(s)...))
}

// LoadBalancerAddresses returns the addresses of a Service's load balancer that nodes serve.
func LoadBalancerAddresses(s *corev1.Service) []netip.Addr {
	var texts []string
	for _, ingress := range s.Status.LoadBalancer.Ingress {
		if ingress.IPMode == nil || *ingress.IPMode == corev1.LoadBalancerIPModeVIP {
			texts = append(texts, ingress.IP)
		}
	}
	return addresses(texts)
}

// Addresses returns the addresses of ClusterIPs and RequestedAddresses without duplicates.
func Addresses(s *corev1.Service) []netip.Addr {
	return unique(append(ClusterIPs(s), RequestedAddresses(s)...))
}

// addresses parses texts and returns each address once. It skips invalid texts, such as None.
func addresses(texts []string) []netip.Addr {
	var all []netip.Addr
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil {
			all = append(all, a.Unmap())
		}
	}
	return unique(all)
}

// unique removes duplicates. A Service may have tens of thousands of addresses.
func unique(all []netip.Addr) []netip.Addr {
	seen := make(map[netip.Addr]bool, len(all))
	return slices.DeleteFunc(all, func(a netip.Addr) bool {
		again := seen[a]
		seen[a] = true
		return again
	})
}

// Vpc returns the VPC of a Service by its annotations: the one that the user set, or else the one that the Service
// controller recorded.
func Vpc(s *corev1.Service) string {
	return cmp.Or(s.Annotations[kubeovnv1.AnnotationLogicalRouter.Key()], s.Annotations[kubeovnv1.AnnotationVpc.Key()], kubeovnv1.DefaultVpc)
}

// Precedence is the precedence of a Service for an address and port that other Services request, too. Controller and agents compare
// it in the same way, so that pods and nodes reach the same Service.
type Precedence struct {
	// Allocated is true if the API server allocated it to this Service only: a ClusterIP or a node port.
	Allocated bool
	// Created is the creation time of the Service.
	Created metav1.Time
	Service types.NamespacedName
}

// Before reports whether p takes precedence: allocated before requested, then the older Service, then by name.
func (p Precedence) Before(o Precedence) bool {
	if p.Allocated != o.Allocated {
		return p.Allocated
	}
	return cmp.Or(p.Created.Compare(o.Created.Time), cmp.Compare(p.Service.Namespace, o.Service.Namespace), cmp.Compare(p.Service.Name, o.Service.Name)) < 0
}
