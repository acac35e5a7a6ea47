// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// Kinds of rules for external addresses, besides KindRouterLBRule.
const (
	KindOvnFip      = "OvnFip"
	KindOvnSnatRule = "OvnSnatRule"
	KindOvnDnatRule = "OvnDnatRule"
)

// OvnNATOwner owns the rows of an OvnFip, OvnSnatRule or OvnDnatRule.
func OvnNATOwner(kind, name string) desired.Owner { return desired.Owner{Kind: kind, Name: name} }

// NATPair is an external address with the internal addresses that it stands for, of the same family: a prefix of one address, unless the rule translates
// sources only.
type NATPair struct {
	External netip.Addr
	Internal netip.Prefix
	// NextHop is the physical router to which the router sends packets from Internal by a policy of the rule; the zero Addr if the routes of the router do.
	NextHop netip.Addr
}

// OvnNATInputs are the inputs of OvnNAT.
type OvnNATInputs struct {
	// Kind is KindOvnFip, KindOvnSnatRule or KindOvnDnatRule.
	Kind string
	Name string
	Vpc  string
	// Eip is the OvnEip of the addresses. Nodes are the nodes that may track connections of the rule, sorted: they host the router's port, or did since the rule has rows,
	// or they have the pod. Both are for Translated.
	Eip   string
	Nodes []string
	// Egress is the EgressAddress that selects the pod, for Translated.
	Egress string
	// Subnet is the external subnet of the addresses, in which the router has a port.
	Subnet string
	// Pairs has at most one per family.
	Pairs []NATPair
	// Port and MAC make the chassis of this logical port translate; empty for the chassis of the router's port.
	Port string
	MAC  net.HardwareAddr
	// Protocol, ExternalPort and InternalPort are of KindOvnDnatRule.
	Protocol                   corev1.Protocol
	ExternalPort, InternalPort uint16
	// Routed are networks to which the user's routes lead: these decide about packets there, and not the policies of the rule.
	Routed []netip.Prefix
	// Inside makes the load balancers of the VPC serve the external address to pods of the VPC.
	Inside bool
}

// OvnNAT returns the rows of a rule: translations, or a load balancer for a port, and policies that send the packets of the internal addresses to the
// physical router.
func OvnNAT(in OvnNATInputs) []desired.Row {
	var rows []desired.Row
	if in.Kind == KindOvnDnatRule {
		if len(in.Pairs) > 0 {
			rows = append(rows, portForward(in))
		}
	} else {
		for _, pair := range in.Pairs {
			rows = append(rows, translation(in, pair))
		}
	}
	policies := desired.RouterPolicies(RouterRef(in.Vpc))
	for _, pair := range in.Pairs {
		if !pair.NextHop.IsValid() {
			continue
		}
		match, priority := matchIP("src", pair.Internal.Addr(), prefixText(pair.Internal)), priorityPrefix+pair.Internal.Bits()
		switch {
		case in.Kind == KindOvnDnatRule: // the answers only
			protocol := strings.ToLower(string(in.Protocol))
			match, priority = match+" && "+protocol+".src == "+strconv.Itoa(int(in.InternalPort)), priorityPort
		case pair.Internal.IsSingleIP():
			priority = priorityAddress
		}
		rows = append(rows, desired.Row{Key: "policy/" + ipfamily.Of(pair.External).String(), Parent: &policies, Model: &nb.LogicalRouterPolicy{
			Priority: priority, Match: match, Action: nb.LogicalRouterPolicyActionReroute, Nexthops: []string{pair.NextHop.String()},
		}})
		if routed := prefixSet(in.Routed, pair.External); routed != "" {
			rows = append(rows, desired.Row{Key: "routed/" + ipfamily.Of(pair.External).String(), Parent: &policies, Model: &nb.LogicalRouterPolicy{
				Priority: PriorityRouted, Match: match + " && " + matchIP("dst", pair.External, routed), Action: nb.LogicalRouterPolicyActionAllow,
			}})
		}
	}
	return rows
}

// Routed returns the networks to which the routes of a custom VPC lead, without default routes. In the default VPC, policies for nodes precede routes.
func Routed(vpc string, routes []StaticRoute) []netip.Prefix {
	var prefixes []netip.Prefix
	for _, route := range routes {
		if vpc != kubeovnv1.DefaultVpc && route.Table == "" && !route.BySource && route.Prefix.Bits() > 0 && !slices.Contains(prefixes, route.Prefix) {
			prefixes = append(prefixes, route.Prefix)
		}
	}
	return prefixes
}

// translation returns the NAT row of a pair. It names the router's port: OVN would choose one by the external address, and skip the row if none fits.
func translation(in OvnNATInputs, pair NATPair) desired.Row {
	nat := desired.RouterNAT(RouterRef(in.Vpc))
	model := &nb.NAT{Type: nb.NATTypeSNAT, ExternalIP: pair.External.String(), LogicalIP: prefixText(pair.Internal), ExternalIDs: in.ids()}
	if in.Kind == KindOvnFip {
		model.Type = nb.NATTypeDNATAndSNAT
		if in.Port != "" { // OVN takes a row with one of the two for a centralized one
			model.LogicalPort, model.ExternalMAC = &in.Port, new(in.MAC.String())
		}
	}
	return desired.Row{
		Key: "nat/" + ipfamily.Of(pair.External).String(), Model: model, Parent: &nat,
		References: []desired.Reference{{Column: "gateway_port", To: []desired.Ref{ExternalPortRef(in.Vpc, in.Subnet)}}},
	}
}

// portForward returns the load balancer of a port. A NAT row cannot do this: its range of ports is no match, and every packet to the address would go to
// the pod.
func portForward(in OvnNATInputs) desired.Row {
	backends := map[string]string{}
	for _, pair := range in.Pairs {
		front := netip.AddrPortFrom(pair.External, in.ExternalPort).String()
		backends[front] = netip.AddrPortFrom(pair.Internal.Addr(), in.InternalPort).String()
	}
	row := balancer(in.Name, strings.ToLower(string(in.Protocol)), in.Vpc, backends, false)
	row.Key = "port"
	lb := row.Model.(*nb.LoadBalancer)
	lb.ExternalIDs = in.ids()
	lb.Options["ct_flush"] = "true" // also TCP: the address may lead to a pod of another tenant next
	onRouter := desired.RouterLoadBalancers(RouterRef(in.Vpc))
	if in.Inside {
		row.Members = append(row.Members, onRouter)
	} else {
		row.Members = []desired.Set{onRouter}
	}
	return row
}

// Keys of external_ids for Translated.
const (
	idVpc   = "vpc"
	idEip   = "eip"
	idNodes = "nodes"

	idEgress = "egress"
)

func (in OvnNATInputs) ids() map[string]string {
	ids := map[string]string{idVpc: in.Vpc, idEip: in.Eip}
	if len(in.Nodes) > 0 {
		ids[idNodes] = strings.Join(in.Nodes, ",")
	}
	if in.Egress != "" {
		ids[idEgress] = in.Egress
	}
	return ids
}

// OfEip reports whether a row of OvnNAT is of an OvnEip, by its external_ids.
func OfEip(ids map[string]string, eip string) bool { return ids[idEip] == eip }

// Translation is one translation in a row of OvnNAT. VPCs can have the same internal addresses.
type Translation struct {
	Vpc      string
	Address  netip.Addr
	Internal netip.Prefix
	// Source: of sources only.
	Source bool
	// Protocol, in lower case, and Port are of a port that leads to Internal.
	Protocol string
	Port     uint16
}

// Translated is a row of OvnNAT, read from its model.
type Translated struct {
	Translations []Translation
	Eip          string
	Egress       string
	Nodes        []string
}

// TranslatedBy reads a row of OvnNAT. Other rows translate nothing.
func TranslatedBy(model any) Translated {
	var t Translated
	var ids map[string]string
	switch row := model.(type) {
	case *nb.NAT:
		ids = row.ExternalIDs
		address, err := netip.ParseAddr(row.ExternalIP)
		internal, ok := addressOrPrefix(row.LogicalIP)
		if err == nil && ok {
			t.Translations = []Translation{{Vpc: ids[idVpc], Address: address, Internal: internal, Source: row.Type == nb.NATTypeSNAT}}
		}
	case *nb.LoadBalancer:
		ids = row.ExternalIDs
		for front, backend := range row.Vips {
			from, err := netip.ParseAddrPort(front)
			to, err2 := netip.ParseAddrPort(backend)
			if err == nil && err2 == nil && row.Protocol != nil {
				t.Translations = append(t.Translations, Translation{
					Vpc: ids[idVpc], Address: from.Addr(), Internal: netip.PrefixFrom(to.Addr(), to.Addr().BitLen()), Protocol: *row.Protocol, Port: from.Port(),
				})
			}
		}
	}
	t.Eip, t.Egress = ids[idEip], ids[idEgress]
	t.Nodes = strings.FieldsFunc(ids[idNodes], func(r rune) bool { return r == ',' })
	return t
}

func addressOrPrefix(text string) (netip.Prefix, bool) {
	if address, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(address, address.BitLen()), true
	}
	prefix, err := netip.ParsePrefix(text)
	return prefix, err == nil
}

// prefixText is a prefix as in the columns of the database: without a length if it is one address.
func prefixText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.Masked().String()
}
