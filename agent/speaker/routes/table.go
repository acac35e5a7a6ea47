// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package routes computes which prefixes the BGP speaker of one node announces, from the objects of the cluster. It is pure and incremental: an
// event recomputes the prefixes of its object, and of the pods of a Subnet that changed.
package routes

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
)

// Owner is an object with an annotation AnnotationBGP, or a pod in a Subnet with one.
type Owner struct {
	Kind string
	types.NamespacedName
}

// String returns Kind namespace/name, without a namespace for Subnets.
func (o Owner) String() string {
	return o.Kind + " " + strings.TrimPrefix(o.NamespacedName.String(), "/")
}

// offer is the prefixes of one owner.
type offer struct {
	// shared are prefixes that every node serves, own those that this node serves itself.
	shared, own []netip.Prefix
	// refused is the reason why an annotation has no effect; empty if it has.
	refused string
}

// count is the number of owners of a prefix.
type count struct{ shared, own int }

// Table holds the prefixes of one node. Its methods must not be called concurrently.
type Table struct {
	node       string
	namespaces map[string]bool
	// transit is true while the node may carry traffic of pods of other nodes.
	transit bool
	// nodeAddresses are the addresses of this node.
	nodeAddresses []netip.Addr

	subnets  map[string]*subnet
	pods     map[types.NamespacedName]*pod
	services map[types.NamespacedName]*service
	// slices are the Services of EndpointSlices, endpoints the readiness in the EndpointSlices of each Service, by name.
	slices    map[types.NamespacedName]types.NamespacedName
	endpoints map[types.NamespacedName]map[string]readiness
	// members are the pods of each subnet that the table holds.
	members map[string]map[types.NamespacedName]bool

	offers    map[Owner]offer
	counts    map[netip.Prefix]count
	changed   map[netip.Prefix]bool
	announced map[netip.Prefix]bool
}

// New returns an empty Table. Until SetNode, the node announces no prefix that all nodes serve.
func New(node string) *Table {
	return &Table{
		node: node, namespaces: map[string]bool{},
		subnets: map[string]*subnet{}, pods: map[types.NamespacedName]*pod{}, services: map[types.NamespacedName]*service{},
		slices: map[types.NamespacedName]types.NamespacedName{}, endpoints: map[types.NamespacedName]map[string]readiness{},
		members: map[string]map[types.NamespacedName]bool{},
		offers:  map[Owner]offer{}, counts: map[netip.Prefix]count{}, changed: map[netip.Prefix]bool{}, announced: map[netip.Prefix]bool{},
	}
}

// SetNamespaces sets the namespaces whose pods and Services may be announced by their own annotations.
func (t *Table) SetNamespaces(names []string) {
	namespaces := make(map[string]bool, len(names))
	for _, n := range names {
		namespaces[n] = true
	}
	t.namespaces = namespaces
	for key := range t.pods {
		t.offerPod(key)
	}
	for key := range t.services {
		t.offerService(key)
	}
}

// permits reports whether the annotations of objects of a namespace have an effect.
func (t *Table) permits(namespace string) bool {
	return t.namespaces[namespace] || t.namespaces[v1alpha1.SpeakerAllNamespaces]
}

// SetNode sets the state of this node; nil if it does not exist. A node that is not ready, that is cordoned or whose deletion began announces no prefix
// that other nodes serve as well. It announces its own pods and endpoints as long as they run, because no other node does.
func (t *Table) SetNode(n *corev1.Node) {
	transit := n != nil && n.DeletionTimestamp.IsZero() && !n.Spec.Unschedulable && nodeReady(n)
	if transit != t.transit {
		t.transit = transit
		for prefix, c := range t.counts {
			if c.shared > 0 {
				t.changed[prefix] = true
			}
		}
	}
	addresses := addressesOf(n)
	if !slices.Equal(addresses, t.nodeAddresses) {
		t.nodeAddresses = addresses
		for key := range t.services {
			t.offerService(key)
		}
	}
}

func nodeReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func addressesOf(n *corev1.Node) []netip.Addr {
	var addresses []netip.Addr
	if n == nil {
		return nil
	}
	for _, a := range n.Status.Addresses {
		if parsed, err := netip.ParseAddr(a.Address); err == nil {
			addresses = append(addresses, parsed.Unmap())
		}
	}
	return addresses
}

// offer replaces the prefixes of an owner.
func (t *Table) offer(owner Owner, next offer) {
	before := t.offers[owner]
	t.add(before.shared, count{shared: -1})
	t.add(before.own, count{own: -1})
	t.add(next.shared, count{shared: 1})
	t.add(next.own, count{own: 1})
	if len(next.shared) == 0 && len(next.own) == 0 && next.refused == "" {
		delete(t.offers, owner)
		return
	}
	t.offers[owner] = next
}

func (t *Table) add(prefixes []netip.Prefix, n count) {
	for _, p := range prefixes {
		c := count{t.counts[p].shared + n.shared, t.counts[p].own + n.own}
		if c == (count{}) {
			delete(t.counts, p)
		} else {
			t.counts[p] = c
		}
		t.changed[p] = true
	}
}

// Changes returns the prefixes to announce and to withdraw since the last call, sorted.
func (t *Table) Changes() (announce, withdraw []netip.Prefix) {
	for p := range t.changed {
		c := t.counts[p]
		wanted := c.own > 0 || c.shared > 0 && t.transit
		switch {
		case wanted && !t.announced[p]:
			t.announced[p] = true
			announce = append(announce, p)
		case !wanted && t.announced[p]:
			delete(t.announced, p)
			withdraw = append(withdraw, p)
		}
	}
	clear(t.changed)
	slices.SortFunc(announce, netip.Prefix.Compare)
	slices.SortFunc(withdraw, netip.Prefix.Compare)
	return announce, withdraw
}

// Announced returns the prefixes of all calls of Changes, sorted.
func (t *Table) Announced() []netip.Prefix {
	all := make([]netip.Prefix, 0, len(t.announced))
	for p := range t.announced {
		all = append(all, p)
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	return all
}

// Refused returns the objects whose annotations have no effect, with the reasons.
func (t *Table) Refused() map[Owner]string {
	refused := map[Owner]string{}
	for owner, o := range t.offers {
		if o.refused != "" {
			refused[owner] = o.refused
		}
	}
	return refused
}

// OwnersOf returns the objects that offer each announced prefix, at most one of each, for users who ask why a prefix is announced.
func (t *Table) OwnersOf() map[netip.Prefix]Owner {
	owners := make(map[netip.Prefix]Owner, len(t.announced))
	for owner, o := range t.offers {
		for _, p := range slices.Concat(o.shared, o.own) {
			if before, found := owners[p]; t.announced[p] && (!found || owner.String() < before.String()) {
				owners[p] = owner
			}
		}
	}
	return owners
}

// refuse returns an offer of an annotation that has no effect.
func refuse(reason string) offer { return offer{refused: reason} }

// announcement returns the value of the annotation of an object, and whether the object has it.
func announcement(annotations map[string]string) (value kubeovnv1.Announcement, set bool, err error) {
	text, set := annotations[kubeovnv1.AnnotationBGP.Key()]
	value, err = kubeovnv1.ParseAnnouncement(text)
	return value, set, err
}
