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

// ClusterIPs are the addresses that a Service has from the API server: no other Service has them.
func ClusterIPs(s *corev1.Service) []netip.Addr { return addresses(s.Spec.ClusterIPs) }

// AskedAddresses are the addresses that a Service asks to be reached at, its externalIPs and those of its load balancer: nothing keeps
// another Service from asking for them too.
func AskedAddresses(s *corev1.Service) []netip.Addr {
	texts := slices.Clone(s.Spec.ExternalIPs)
	for _, ingress := range s.Status.LoadBalancer.Ingress {
		if ingress.IPMode == nil || *ingress.IPMode == corev1.LoadBalancerIPModeVIP {
			texts = append(texts, ingress.IP)
		}
	}
	return addresses(texts)
}

// ServiceAddresses are both, each address once.
func ServiceAddresses(s *corev1.Service) []netip.Addr {
	return unique(append(ClusterIPs(s), AskedAddresses(s)...))
}

// addresses are what texts say, each address once. None, and the like, are no addresses.
func addresses(texts []string) []netip.Addr {
	var all []netip.Addr
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil {
			all = append(all, a.Unmap())
		}
	}
	return unique(all)
}

// unique removes repeated addresses. A Service may have tens of thousands of addresses.
func unique(all []netip.Addr) []netip.Addr {
	seen := make(map[netip.Addr]bool, len(all))
	return slices.DeleteFunc(all, func(a netip.Addr) bool {
		again := seen[a]
		seen[a] = true
		return again
	})
}

// VpcNoted is the VPC of a Service as its annotations have it: the one that a user names, or else the one that the controller of Services noted.
func VpcNoted(s *corev1.Service) string {
	return cmp.Or(s.Annotations[kubeovnv1.AnnotationLogicalRouter.Key()], s.Annotations[kubeovnv1.AnnotationVpc.Key()], kubeovnv1.DefaultVpc)
}

// Right is by what a Service has an address and port that others ask for as well. Controller and agents compare rights in one way, so that
// pods and nodes reach the same Service.
type Right struct {
	// Given says that the API server gave it to this Service alone: a ClusterIP, or a node port.
	Given   bool
	Since   metav1.Time
	Service types.NamespacedName
}

// Before reports whether r is the better right: what was given goes before what was asked for, then the older Service before the younger one.
func (r Right) Before(o Right) bool {
	if r.Given != o.Given {
		return r.Given
	}
	return cmp.Or(r.Since.Compare(o.Since.Time), cmp.Compare(r.Service.Namespace, o.Service.Namespace), cmp.Compare(r.Service.Name, o.Service.Name)) < 0
}
