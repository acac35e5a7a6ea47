// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// Egress is a parsed EgressAddressSpec.
type Egress struct {
	Namespaces, Pods labels.Selector
	// Nodes can have the addresses, which are in the order of the spec. Both are empty for the addresses of an OvnEip.
	Nodes     labels.Selector
	Addresses []netip.Addr
}

// EgressAddress parses a spec. The API server checks the other fields.
func EgressAddress(spec *kubeovnv1.EgressAddressSpec) (Egress, *Problem) {
	var problem *Problem
	parse := func(field string, s *metav1.LabelSelector) labels.Selector {
		if s == nil {
			return labels.Everything()
		}
		selector, err := metav1.LabelSelectorAsSelector(s)
		if err != nil && problem == nil {
			problem = Invalid("%s: %v", field, err)
		}
		return selector
	}
	out := Egress{
		Namespaces: parse("namespaceSelector", &spec.NamespaceSelector), Pods: parse("podSelector", spec.PodSelector), Nodes: parse("nodeSelector", spec.NodeSelector),
	}
	for _, text := range spec.Addresses {
		address, err := ipfamily.ParseAddr(text)
		if err != nil && problem == nil {
			problem = Invalid("addresses: %v", err)
		}
		out.Addresses = append(out.Addresses, address)
	}
	return out, problem
}
