// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipfamily"
)

// PodRequest reads what a pod asks for and checks it by itself.
func PodRequest(annotations map[string]string) (kubeovnv1.PodRequest, *Problem) {
	request, err := kubeovnv1.ParsePodRequest(annotations)
	if err != nil {
		return kubeovnv1.PodRequest{}, problem(ReasonRequestInvalid, "%v", err)
	}
	for _, addr := range request.Addresses {
		if request.Family != "" && string(request.Family) != ipfamily.Of(addr).String() {
			return kubeovnv1.PodRequest{}, problem(ReasonRequestInvalid, "annotation %s asks for %s, and %s for family %s only: remove one of them",
				kubeovnv1.AnnotationIPAddress.Key(), addr, kubeovnv1.AnnotationIPFamily.Key(), request.Family)
		}
	}
	return request, nil
}

// PodRequestIn checks a request against the subnet that is to serve it. Whether an address is taken is the allocator's to say.
func PodRequestIn(request kubeovnv1.PodRequest, subnet string, n Network) *Problem {
	for _, addr := range request.Addresses {
		i := slices.IndexFunc(n.CIDRs, func(cidr netip.Prefix) bool { return cidr.Contains(addr) })
		if i < 0 {
			return problem(ReasonRequestOutside, "annotation %s: %s is outside of subnet %s, %s: ask for one inside, or for another subnet",
				kubeovnv1.AnnotationIPAddress.Key(), addr, subnet, ipfamily.Join(n.CIDRs))
		}
		if slices.Contains(n.Gateways, addr) || reserved(addr, n.CIDRs[i]) {
			return problem(ReasonRequestOutside, "annotation %s: %s is the gateway, network, broadcast or anycast address of subnet %s: ask for another one",
				kubeovnv1.AnnotationIPAddress.Key(), addr, subnet)
		}
	}
	if request.Family != "" && !slices.ContainsFunc(n.CIDRs, func(c netip.Prefix) bool { return familyOf(c) == request.Family }) {
		return problem(ReasonFamilyNotInSubnet, "annotation %s: subnet %s, %s, has no %s: remove the annotation, or ask for another subnet",
			kubeovnv1.AnnotationIPFamily.Key(), subnet, ipfamily.Join(n.CIDRs), request.Family)
	}
	return nil
}

func familyOf(cidr netip.Prefix) corev1.IPFamily {
	return corev1.IPFamily(ipfamily.Of(cidr.Addr()).String())
}
