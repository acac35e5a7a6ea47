// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package routes computes which prefixes the BGP speaker of one node announces, from the objects of the cluster. It is pure and incremental: an
// event recomputes the prefixes of its object, and of the pods of a Subnet that changed.
package routes

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/serving/budget"
)

// Route is an announced prefix.
type Route struct {
	netip.Prefix
	// MED (RFC 4271, section 5.1.4) is 0 for none. Of two nodes that announce a prefix, a router uses the one with the lower MED.
	MED uint32
}

// Owner is an object with an annotation AnnotationBGP, or a pod in a Subnet with one. Each port of a pod is an owner by itself.
type Owner struct {
	Kind string
	types.NamespacedName
	// Provider of the network of a port; empty for ProviderOVN, and for other objects.
	Provider string
}

// String returns Kind namespace/name, without a namespace for objects that have none, and with the provider of a port that has one.
func (o Owner) String() string {
	text := o.Kind + " " + strings.TrimPrefix(o.NamespacedName.String(), "/")
	if o.Provider != "" {
		text += " at " + o.Provider
	}
	return text
}

// offer is the prefixes of one owner.
type offer struct {
	// shared are prefixes that every node serves, own the prefixes that only this node serves.
	shared, own []netip.Prefix
	// med is the MED of the own prefixes.
	med uint32
	// refused is the reason why an annotation has no effect, or an address is not announced; empty if there is none.
	refused string
}

// count is the number of owners of a prefix.
type count struct{ shared, own int }

// Table holds the prefixes of one node. Its methods must not be called concurrently.
type Table struct {
	node     string
	settings Settings
	nodes    map[string]nodeState
	// network is true while the node may announce prefixes, transit while it may announce those that other nodes serve as well. They are computed
	// from nodes and settings when judged is false.
	network, transit, judged bool
	// reserved are addresses that Services may not announce, with the number of objects that have each.
	reserved map[reservation]int

	subnets  map[string]*subnet
	ports    map[Owner]*port
	services map[types.NamespacedName]*service
	// egresses are the EgressAddresses.
	egresses map[string]*egress
	// eips are the addresses of the OvnEips with the annotation, and ruled the number of OvnEips with each address.
	eips  map[string][]netip.Addr
	ruled map[netip.Addr]int
	// slices are the Services of EndpointSlices, endpoints the readiness in the EndpointSlices of each Service, by name.
	slices    map[types.NamespacedName]types.NamespacedName
	endpoints map[types.NamespacedName]map[string]readiness
	// apiServers are the addresses in the EndpointSlices of the API servers, by name.
	apiServers map[string][]netip.Addr
	// members are the ports in each subnet that the table holds.
	members map[string]map[Owner]bool

	// requests has the numbers of prefixes that annotations request, by namespace. excess are the objects beyond the limit, and
	// unreported those that NewExcess has not returned.
	requests   *budget.Budget
	excess     map[Owner]bool
	unreported []Owner

	offers    map[Owner]offer
	counts    map[netip.Prefix]count
	meds      map[netip.Prefix]uint32
	changed   map[netip.Prefix]bool
	announced map[netip.Prefix]uint32 // with the MED
}

// New returns an empty Table. Without its Node, the node announces nothing.
func New(node string) *Table {
	return &Table{
		node: node, settings: Settings{MaxPrefixes: v1alpha1.DefaultMaxPrefixes}, nodes: map[string]nodeState{}, reserved: map[reservation]int{}, apiServers: map[string][]netip.Addr{},
		subnets: map[string]*subnet{}, ports: map[Owner]*port{}, services: map[types.NamespacedName]*service{}, egresses: map[string]*egress{}, eips: map[string][]netip.Addr{}, ruled: map[netip.Addr]int{},
		slices: map[types.NamespacedName]types.NamespacedName{}, endpoints: map[types.NamespacedName]map[string]readiness{},
		members: map[string]map[Owner]bool{}, requests: &budget.Budget{}, excess: map[Owner]bool{},
		offers: map[Owner]offer{}, counts: map[netip.Prefix]count{}, meds: map[netip.Prefix]uint32{}, changed: map[netip.Prefix]bool{},
		announced: map[netip.Prefix]uint32{},
	}
}

// Settings are the parts of spec.speaker that the table depends on.
type Settings struct {
	// Namespaces whose pods and Services may be announced by their own annotations.
	Namespaces []string
	// Nodes are the labels of the nodes with a speaker.
	Nodes map[string]string
	// Peers are the addresses of the routers.
	Peers []netip.Addr
	// Classes of load balancers whose addresses are announced without an annotation.
	Classes []string
	// MaxPrefixes is how many prefixes the annotations of a namespace may announce; 0 for v1alpha1.DefaultMaxPrefixes.
	MaxPrefixes int
}

// Set applies the settings.
func (t *Table) Set(s Settings) {
	t.reserve(aPeer, t.settings.Peers, s.Peers)
	s.MaxPrefixes = cmp.Or(s.MaxPrefixes, v1alpha1.DefaultMaxPrefixes)
	if s.MaxPrefixes != t.settings.MaxPrefixes { // a Budget has one bound
		t.requests = &budget.Budget{}
	}
	t.settings, t.judged = s, false
	for owner := range t.ports {
		t.offerPort(owner)
	}
	t.offerServices()
}

// permits reports whether the annotations of objects of a namespace have an effect.
func (t *Table) permits(namespace string) bool {
	return slices.Contains(t.settings.Namespaces, namespace) || slices.Contains(t.settings.Namespaces, v1alpha1.SpeakerAllNamespaces)
}

// offer replaces the prefixes of an owner.
func (t *Table) offer(owner Owner, next offer) {
	before := t.offers[owner]
	t.add(before.shared, count{shared: -1})
	t.add(before.own, count{own: -1})
	t.add(next.shared, count{shared: 1})
	t.add(next.own, count{own: 1})
	if next.med != 0 {
		for _, p := range next.own {
			t.meds[p] = next.med
		}
	}
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
			delete(t.meds, p)
		} else {
			t.counts[p] = c
		}
		t.changed[p] = true
	}
}

// Changes returns the routes to announce, also those whose MED has changed, and the prefixes to withdraw since the last call, sorted.
func (t *Table) Changes() (announce []Route, withdraw []netip.Prefix) {
	t.judge()
	for p := range t.changed {
		c, med := t.counts[p], t.meds[p]
		wanted := c.own > 0 && t.network || c.shared > 0 && t.transit
		switch before, announced := t.announced[p]; {
		case wanted && (!announced || before != med):
			t.announced[p] = med
			announce = append(announce, Route{p, med})
		case !wanted && announced:
			delete(t.announced, p)
			withdraw = append(withdraw, p)
		}
	}
	clear(t.changed)
	slices.SortFunc(announce, compareRoutes)
	slices.SortFunc(withdraw, netip.Prefix.Compare)
	return announce, withdraw
}

// Announced returns the routes of all calls of Changes, sorted.
func (t *Table) Announced() []Route {
	all := make([]Route, 0, len(t.announced))
	for p, med := range t.announced {
		all = append(all, Route{p, med})
	}
	slices.SortFunc(all, compareRoutes)
	return all
}

func compareRoutes(a, b Route) int { return a.Compare(b.Prefix) }

// Refused returns the objects whose annotations have no effect, or that have an address that is not announced, with the reasons.
func (t *Table) Refused() map[Owner]string {
	refused := map[Owner]string{}
	for owner, o := range t.offers {
		if o.refused != "" {
			refused[owner] = o.refused
		}
	}
	return refused
}

// OwnersOf returns the objects that offer each announced prefix, at most one of each, for the output that explains why a prefix is announced.
func (t *Table) OwnersOf() map[netip.Prefix]Owner {
	owners := make(map[netip.Prefix]Owner, len(t.announced))
	for owner, o := range t.offers {
		for _, p := range slices.Concat(o.shared, o.own) {
			_, announced := t.announced[p]
			if before, found := owners[p]; announced && (!found || owner.String() < before.String()) {
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
	if kubeovnv1.IsMirror(annotations) {
		return kubeovnv1.AnnounceNone, false, nil
	}
	value, err = kubeovnv1.ParseAnnouncement(text)
	return value, set, err
}
