// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// SetEip updates an OvnEip. Nodes announce its addresses, which the controller has written into its status, while they serve them: for a RouterLBRule of the default VPC, through the
// rule's Service. A deleted OvnEip stays until no rule uses it.
func (t *Table) SetEip(e *kubeovnv1.OvnEip) {
	value, _, err := announcement(e.Annotations)
	var addresses []netip.Addr
	next := offer{}
	switch {
	case err != nil:
		next = refuse(fmt.Sprintf("annotation %s %v", kubeovnv1.AnnotationBGP.Key(), err))
	case value == kubeovnv1.AnnounceNone:
	case cmp.Or(e.Spec.Type, kubeovnv1.OvnEipTypeNAT) != kubeovnv1.OvnEipTypeNAT || !slices.Contains(strings.Split(e.Status.NAT, ","), natOfRules):
		next = refuse("no RouterLBRule uses it: nodes serve addresses of OvnEips only for RouterLBRules of VPC " + kubeovnv1.DefaultVpc)
	default:
		addresses = ipfamily.ValidAddrs(e.Status.V4IP, e.Status.V6IP)
	}
	t.setEip(e.Name, addresses, next)
}

// natOfRules is the word in status.nat of an OvnEip that RouterLBRules use.
const natOfRules = "lb"

// DeleteEip removes an OvnEip.
func (t *Table) DeleteEip(name string) { t.setEip(name, nil, offer{}) }

func (t *Table) setEip(name string, next []netip.Addr, of offer) {
	t.offer(Owner{Kind: kubeovnv1.OnOvnEip, NamespacedName: types.NamespacedName{Name: name}}, of)
	before := t.eips[name]
	if slices.Equal(before, next) {
		return
	}
	for _, a := range next {
		t.ruled[a]++
	}
	for _, a := range before {
		if t.ruled[a]--; t.ruled[a] == 0 {
			delete(t.ruled, a)
		}
	}
	if t.eips[name] = next; len(next) == 0 {
		delete(t.eips, name)
	}
	t.offerServices()
}

// announcedEips returns the addresses of OvnEips with the annotation.
func (t *Table) announcedEips(of []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(of), func(a netip.Addr) bool { return t.ruled[a] == 0 })
}
