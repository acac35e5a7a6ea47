// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
)

// egress is the state of an EgressAddress. Its node and addresses are from the status, which the controller writes after it has checked the spec and committed the rows.
type egress struct {
	value     kubeovnv1.Announcement
	err       error
	node      string
	addresses []netip.Addr
	med       uint32
	// eip is the OvnEip with the addresses; empty for addresses on nodes.
	eip string
}

// SetEgress updates an EgressAddress. Services of users may not announce its addresses, with or without its annotation.
func (t *Table) SetEgress(e *kubeovnv1.EgressAddress) {
	if !e.DeletionTimestamp.IsZero() {
		t.DeleteEgress(e.Name)
		return
	}
	next := &egress{node: e.Status.Node, addresses: ipfamily.ValidAddrs(e.Status.Addresses...), med: medOf(e.Status.NodeSince)}
	next.value, _, next.err = announcement(e.Annotations)
	if spec := k8s.AppliedEgress(e); spec != nil && next.node == "" {
		next.eip = spec.OvnEip
	}
	t.setEgress(e.Name, next)
}

// DeleteEgress removes an EgressAddress.
func (t *Table) DeleteEgress(name string) {
	t.setEgress(name, &egress{})
	delete(t.egresses, name)
}

func (t *Table) setEgress(name string, next *egress) {
	var before []netip.Addr
	if e := t.egresses[name]; e != nil {
		before = e.addresses
	}
	t.egresses[name] = next
	t.reserve(anEgress, before, next.addresses)
	t.offerEgress(name)
}

// medOf returns the MED of addresses that a node has since a time: a router that gets an address from two nodes uses the one that has got it later. The other one may be cut off from
// the API server, and announce the address until its sessions end.
func medOf(since *metav1.Time) uint32 {
	if since == nil {
		return math.MaxUint32
	}
	return uint32(math.MaxUint32 - min(max(since.Unix(), 0), math.MaxUint32-1))
}

// offerEgress computes the prefixes of an EgressAddress. Only the node that has the addresses announces them, whatever the value of the annotation.
func (t *Table) offerEgress(name string) {
	owner := Owner{Kind: kubeovnv1.OnEgressAddress, NamespacedName: types.NamespacedName{Name: name}}
	e := t.egresses[name]
	next := offer{med: e.med}
	switch {
	case e.err != nil:
		next = refuse(fmt.Sprintf("annotation %s %v", kubeovnv1.AnnotationBGP.Key(), e.err))
	case e.value == kubeovnv1.AnnounceNone:
	case e.eip != "":
		next = refuse(fmt.Sprintf("its addresses are of OvnEip %s: routers reach them in the external subnet, and not through nodes", e.eip))
	case e.node == t.node:
		for _, prefix := range hosts(e.addresses) {
			if reason := t.taken(prefix.Addr(), fromEip); reason != "" {
				next.refused = cmp.Or(next.refused, reason)
			} else if !slices.Contains(next.own, prefix) {
				next.own = append(next.own, prefix)
			}
		}
	}
	t.offer(owner, next)
}

func (t *Table) offerEgresses() {
	for name := range t.egresses {
		t.offerEgress(name)
	}
}
