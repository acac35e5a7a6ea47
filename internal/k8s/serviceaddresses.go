// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package k8s

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

// AskedAddresses returns the addresses that a Service requests: its externalIPs and the addresses of its load balancer. Several
// Services can request the same one.
func AskedAddresses(s *corev1.Service) []netip.Addr {
	texts := slices.Clone(s.Spec.ExternalIPs)
	for _, ingress := range s.Status.LoadBalancer.Ingress {
		if ingress.IPMode == nil || *ingress.IPMode == corev1.LoadBalancerIPModeVIP {
			texts = append(texts, ingress.IP)
		}
	}
	return addresses(texts)
}

// ServiceAddresses returns the addresses of ClusterIPs and AskedAddresses without duplicates.
func ServiceAddresses(s *corev1.Service) []netip.Addr {
	return unique(append(ClusterIPs(s), AskedAddresses(s)...))
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

// VpcNoted returns the VPC of a Service by its annotations: the one that the user set, or else the one that the Service
// controller recorded.
func VpcNoted(s *corev1.Service) string {
	return cmp.Or(s.Annotations[kubeovnv1.AnnotationLogicalRouter.Key()], s.Annotations[kubeovnv1.AnnotationVpc.Key()], kubeovnv1.DefaultVpc)
}

// Right is the precedence of a Service for an address and port that other Services request, too. Controller and agents compare
// it in the same way, so that pods and nodes reach the same Service.
type Right struct {
	// Given is true if the API server allocated it to this Service only: a ClusterIP or a node port.
	Given   bool
	Since   metav1.Time
	Service types.NamespacedName
}

// Before reports whether r takes precedence: allocated before requested, then the older Service, then by name.
func (r Right) Before(o Right) bool {
	if r.Given != o.Given {
		return r.Given
	}
	return cmp.Or(r.Since.Compare(o.Since.Time), cmp.Compare(r.Service.Namespace, o.Service.Namespace), cmp.Compare(r.Service.Name, o.Service.Name)) < 0
}
