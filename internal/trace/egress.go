// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/podset"
	"github.com/kiln-net/kiln/internal/validation"
)

// useEgress fills the sets of pods that EgressAddresses select.
func (s *Snapshot) useEgress(sets *podset.Index) {
	for _, e := range s.Egresses {
		if spec := k8s.AppliedEgress(e); spec != nil {
			owner := translate.EgressAddressOwner(e.Name)
			sets.Use(owner, []podset.Selector{podset.OfEgress(e, spec)})
			sets.Settle(owner)
		}
	}
}

// addEgress adds the policies of EgressAddresses. The node of one stands for its router, whose address on the subnet join is not in the API. With an OvnEip, there is no node:
// the policies of the pods' rules precede.
func (w *walk) addEgress() {
	for _, e := range w.s.Egresses {
		spec := k8s.AppliedEgress(e)
		if spec == nil || !podset.OfEgress(e, spec).HasRows() {
			continue
		}
		parsed, _ := validation.EgressAddress(spec)
		if spec.OvnEip != "" {
			parsed.Addresses = ipfamily.ValidAddrs(e.Status.Addresses...)
		}
		_, hops := w.s.nodeAddresses(e.Status.Node)
		owner := translate.EgressAddressOwner(e.Name)
		var policies []desired.Row
		for _, row := range translate.EgressAddress(translate.EgressAddressInputs{
			Name: e.Name, Sets: []string{podset.OfEgress(e, spec).Name()}, Addresses: parsed.Addresses, Node: e.Status.Node, NextHops: hops, Joined: hops, Gateways: hops,
		}) {
			if _, is := row.Model.(*nb.LogicalRouterPolicy); is && row.Parent.Row == translate.RouterRef(kubeovnv1.DefaultVpc) {
				policies = append(policies, row)
			}
		}
		w.m.add(owner, policies)
	}
}

// egressEip returns the OvnEip of an EgressAddress; "" if it has addresses on nodes.
func (s *Snapshot) egressEip(name string) string {
	for _, e := range s.Egresses {
		if spec := k8s.AppliedEgress(e); e.Name == name && spec != nil {
			return spec.OvnEip
		}
	}
	return ""
}

// leavesFixed reports that a packet leaves through a node with the address of the EgressAddress whose policy led there.
func (w *walk) leavesFixed(node string, p packet) {
	for _, e := range w.s.Egresses {
		if e.Name != w.egress {
			continue
		}
		address := first(ipfamily.ValidAddrs(e.Status.Addresses...), familyOf(p.dst))
		w.translated = true
		w.say(Changes, &Object{Kind: translate.KindEgressAddress, Name: e.Name}, "EgressAddress %s selects the pod: the packet leaves through node %s with the address %s", e.Name, node, address)
		w.beyond(node, p, "%s is outside of the cluster: the network there decides the rest", p.dst)
	}
}
