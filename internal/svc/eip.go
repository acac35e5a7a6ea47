// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package svc

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// ByOvnEip reports whether a Service requests the addresses of an OvnEip. The router of a custom VPC serves them. Nodes do not: their ipMode in the status is Proxy.
func ByOvnEip(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer && s.Spec.LoadBalancerClass != nil && *s.Spec.LoadBalancerClass == kubeovnv1.ClassOvnEip
}

// EipAddresses returns the addresses of an OvnEip that a Service has; none for other Services.
func EipAddresses(s *corev1.Service) []netip.Addr {
	if !ByOvnEip(s) {
		return nil
	}
	var texts []string
	for i := range s.Status.LoadBalancer.Ingress {
		texts = append(texts, s.Status.LoadBalancer.Ingress[i].IP)
	}
	return addresses(texts)
}

// Request returns the addresses that a Service of type LoadBalancer requests, by family. The error says what to change; addresses that are of no family of the Service are
// returned with an error.
func Request(s *corev1.Service) (requested [2]netip.Addr, err error) {
	key, text := "annotation "+kubeovnv1.AnnotationIPAddress.Key(), s.Annotations[kubeovnv1.AnnotationIPAddress.Key()]
	if text == "" {
		key, text = "spec.loadBalancerIP", s.Spec.LoadBalancerIP
	}
	addresses, err := ipfamily.ParseAddrs(text)
	if err != nil {
		return requested, fmt.Errorf("%s: %w: write one address of each family at most", key, err)
	}
	for _, a := range addresses {
		if family := corev1.IPFamily(ipfamily.Of(a).String()); !slices.Contains(s.Spec.IPFamilies, family) {
			err = fmt.Errorf("%s: %s is not of a family of the Service: add %s to spec.ipFamilies", key, a, family)
		}
		requested[ipfamily.Of(a)] = a
	}
	return requested, err
}
