// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"cmp"
	"context"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/acllog"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/svc"
	"github.com/kiln-net/kiln/internal/trace"
)

const (
	kindNetworkPolicy, kindSubnet, kindSecurityGroup = "NetworkPolicy", "Subnet", "SecurityGroup"
	// maxACLName is the length at which the names of ACLs are cut (ovn-nb(5)).
	maxACLName = 63
)

// owner is an object that has an address.
type owner struct {
	trace.Object
	// vpc is empty if it is not known, and for nodes and Services.
	vpc string
	// target: it is a pod of the target.
	target bool
}

// names finds the owners of addresses. An IP object is found by the API server's index of addresses; Services and nodes are listed once.
type names struct {
	*plugin
	found map[netip.Addr][]owner
	// others are Services and nodes, after they were listed.
	others map[netip.Addr][]owner
	unread []string
}

// forget makes names read again: addresses may have other owners.
func (n *names) forget() { n.found, n.others = nil, nil }

// of returns the owners of an address.
func (n *names) of(ctx context.Context, addr netip.Addr, w *watched) []owner {
	if all, known := n.found[addr]; known {
		return all
	}
	all := slices.Clone(w.addresses[addr])
	field := map[bool]string{true: "spec.v4IpAddress", false: "spec.v6IpAddress"}[addr.Is4()]
	ips := &kubeovnv1.IPList{}
	n.answered(n.objects.List(ctx, ips, client.MatchingFields{field: addr.String()}), "list ips.kubeovn.io")
	for i := range ips.Items {
		ip := &ips.Items[i]
		if !slices.Contains(ipfamily.ValidAddrs(strings.Split(ip.Spec.IPAddress, ",")...), addr) {
			continue // not a field of the API server's index
		}
		o := owner{Object: trace.Object{Kind: "Pod", Namespace: ip.Spec.Namespace, Name: ip.Spec.PodName}, vpc: w.vpcs[ip.Spec.Subnet]}
		switch {
		case k8s.NodeOf(ip) != "":
			o = owner{Object: trace.Object{Kind: "Node", Name: k8s.NodeOf(ip)}}
		case ip.Spec.PodName == "": // a reservation
			continue
		case ip.Spec.PodType == kubeovnv1.PodTypeVirtualMachine:
			o.Kind = kubeovnv1.PodTypeVirtualMachine
		}
		if !slices.ContainsFunc(all, func(other owner) bool { return other.Object == o.Object }) {
			all = append(all, o)
		}
	}
	if len(all) == 0 {
		all = n.other(ctx, addr)
	}
	if n.found == nil || len(n.found) > 2*maxDrops {
		n.found = map[netip.Addr][]owner{}
	}
	if ctx.Err() == nil {
		n.found[addr] = all
	}
	return all
}

// other returns the Services or nodes with an address.
func (n *names) other(ctx context.Context, addr netip.Addr) []owner {
	if n.others == nil {
		services, nodes := &corev1.ServiceList{}, &corev1.NodeList{}
		n.answered(n.objects.List(ctx, services), "list services")
		n.answered(n.objects.List(ctx, nodes), "list nodes")
		if ctx.Err() != nil {
			return nil
		}
		n.others = map[netip.Addr][]owner{}
		for i := range services.Items {
			s := &services.Items[i]
			for _, a := range svc.Addresses(s) {
				n.others[a] = append(n.others[a], owner{Object: trace.Object{Kind: "Service", Namespace: s.Namespace, Name: s.Name}, vpc: svc.Vpc(s)})
			}
		}
		for i := range nodes.Items {
			for _, a := range k8s.OwnIPs(&nodes.Items[i]) {
				n.others[a] = append(n.others[a], owner{Object: trace.Object{Kind: "Node", Name: nodes.Items[i].Name}})
			}
		}
	}
	return n.others[addr]
}

// answered records the permission that a list lacks. Other errors leave addresses without names.
func (n *names) answered(err error, right string) {
	if apierrors.IsForbidden(err) && !slices.Contains(n.unread, right) {
		n.unread = append(n.unread, right)
	}
}

// end describes an end of a packet.
type end struct {
	owner
	Address netip.Addr
	// sure: the owner is in the VPC of the packet.
	sure bool
}

func (e end) isTarget() bool { return e.sure && e.target }

// choose returns the owner of an address in a namespace and a VPC; empty ones are not known. If none is there, it may be the only owner elsewhere: VPCs can have routes to others.
func choose(addr netip.Addr, all []owner, namespace, vpc string) end {
	for _, o := range all {
		if (namespace == "" || o.Namespace == namespace) && (vpc == "" || o.vpc == "" || o.vpc == vpc) {
			return end{o, addr, true}
		}
	}
	if len(all) == 1 && namespace == "" {
		return end{all[0], addr, false}
	}
	return end{Address: addr}
}

// describe returns the drop of a packet, or nil if it does not concern the target. The ACL has a side: the destination if it is about packets to pods, the source otherwise.
// Its owner is in the namespace of the policy, and the VPC of that pod is the VPC of the packet.
func (r *dropsRun) describe(ctx context.Context, packet loggedPacket) *Drop {
	p := packet.Packet
	objects := r.deciders(p)
	subject, peer := p.Source, p.Destination
	if p.ToPort {
		subject, peer = p.Destination, p.Source
	}
	namespace, vpc := objects[0].Namespace, ""
	if objects[0].Kind == kindSubnet {
		vpc = r.watched.vpcs[objects[0].Name]
	}
	for _, o := range objects[1:] {
		if o.Namespace != namespace {
			namespace = ""
		}
	}
	owned := choose(subject, r.names.of(ctx, subject, r.watched), namespace, vpc)
	vpc = cmp.Or(vpc, owned.vpc)
	if !owned.isTarget() && !choose(peer, r.watched.addresses[peer], "", vpc).isTarget() {
		return nil // before the peer is read: another VPC can have the addresses of the target
	}
	d := newDrop(packet, objects)
	d.From, d.To = newEnd(owned), newEnd(choose(peer, r.names.of(ctx, peer, r.watched), "", vpc))
	if p.ToPort {
		d.From, d.To = d.To, d.From
	}
	return &d
}

// titled matches the name of an ACL of a NetworkPolicy that is not cut (translate.PolicyInputs).
var titled = regexp.MustCompile(`^np/([a-z0-9]([a-z0-9.-]*[a-z0-9])?)\.([a-z0-9]([a-z0-9-]*[a-z0-9])?)/(ingress|egress)/default$`)

// deciders returns the objects that may have the ACL of a packet, at least one.
func (r *dropsRun) deciders(p acllog.Packet) []trace.Object {
	objects := slices.Clone(r.watched.acls[p.ACL])
	if m := titled.FindStringSubmatch(p.ACL); len(objects) == 0 && m != nil && len(p.ACL) < maxACLName {
		objects = []trace.Object{{Kind: kindNetworkPolicy, Namespace: m[3], Name: m[1]}}
	}
	for i := range objects {
		if objects[i].Kind == kindSubnet || objects[i].Rule != "" {
			continue
		}
		if objects[i].Rule = "egress"; p.ToPort {
			objects[i].Rule = "ingress"
		}
	}
	if len(objects) == 0 {
		return []trace.Object{{Kind: "ACL", Name: plain(p.ACL)}}
	}
	return objects
}
