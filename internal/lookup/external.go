// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lookup

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/validation"
)

// ConnectedSubnets returns the external subnets in which the router of a VPC has a port, by its status.
func ConnectedSubnets(vpc *kubeovnv1.Vpc) []string {
	if vpc.Status.EnableExternal && len(vpc.Status.ExtraExternalSubnets) == 0 {
		return []string{kubeovnv1.DefaultExternalSubnet}
	}
	return vpc.Status.ExtraExternalSubnets
}

// ExternalOf returns the external subnets that a VPC uses: of its current and its applied spec, and of its status, sorted.
func ExternalOf(vpc *kubeovnv1.Vpc) []string {
	subnets := slices.Concat(vpc.Spec.ExternalSubnets(), k8s.AppliedVpc(vpc).Spec.ExternalSubnets(), ConnectedSubnets(vpc))
	slices.Sort(subnets)
	return slices.Compact(subnets)
}

// VpcsWithExternal returns the VPCs that use an external subnet.
func (n *Networks) VpcsWithExternal(ctx context.Context, subnet string) ([]string, error) {
	return n.vpcs(ctx, client.MatchingFields{indexExternal: subnet})
}

// ExternalNameTaken reports whether an older object needs one of the names of the ports between a VPC's router and an external subnet. The subnet itself
// is none of these: it has no port on that router.
func (n *Networks) ExternalNameTaken(ctx context.Context, vpc *kubeovnv1.Vpc, subnet string) (bool, error) {
	claimants, err := n.claimants(ctx, externalPortNames(vpc.Name, subnet))
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(claimants, func(c client.Object) bool {
		s, ok := c.(*kubeovnv1.Subnet)
		return c.GetUID() != vpc.UID && (!ok || s.Name != subnet) && Precedes(c, vpc)
	}), nil
}

// externalPortNames returns the names of a router's port in an external subnet, and of the subnet's port to the router.
func externalPortNames(vpc, subnet string) []string {
	return []string{vpc + "-" + subnet, subnet + "-" + vpc}
}

// ExternalOfEip returns the subnet of an OvnEip.
func ExternalOfEip(eip *kubeovnv1.OvnEip) string {
	return cmp.Or(eip.Spec.ExternalSubnet, kubeovnv1.DefaultExternalSubnet)
}

// AddressesOfEip returns the addresses of an OvnEip, as text.
func AddressesOfEip(o client.Object) []string {
	eip := o.(*kubeovnv1.OvnEip)
	var texts []string
	for _, a := range ipfamily.ValidAddrs(eip.Status.V4IP, eip.Status.V6IP) {
		texts = append(texts, a.String())
	}
	return texts
}

// EipsAt returns the OvnEips with an address, sorted by name. They belong to the cache and must not be changed.
func (n *Networks) EipsAt(ctx context.Context, address netip.Addr) ([]*kubeovnv1.OvnEip, error) {
	var list kubeovnv1.OvnEipList
	if err := n.reader.List(ctx, &list, client.MatchingFields{indexEipAddress: address.String()}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list OvnEips by address: %w", err)
	}
	eips := make([]*kubeovnv1.OvnEip, 0, len(list.Items))
	for i := range list.Items {
		eips = append(eips, &list.Items[i])
	}
	slices.SortFunc(eips, func(a, b *kubeovnv1.OvnEip) int { return cmp.Compare(a.Name, b.Name) })
	return eips, nil
}

// longestConnection is the longest time-out of connection tracking: of established TCP connections in Linux (nf_conntrack_tcp_timeout_established).
const longestConnection = 5 * 24 * time.Hour

// Expires returns the time from which on a former translation of an OvnEip no longer waits for nodes.
func Expires(release kubeovnv1.OvnEipRelease) time.Time { return release.Since.Add(longestConnection) }

// Awaited returns the former translations of an OvnEip for whose nodes the addresses wait, in the order of their IDs.
func Awaited(releasing map[string]kubeovnv1.OvnEipRelease) []kubeovnv1.OvnEipRelease {
	var all []kubeovnv1.OvnEipRelease
	for _, id := range slices.Sorted(maps.Keys(releasing)) {
		if release := releasing[id]; len(release.Nodes) > 0 {
			all = append(all, release)
		}
	}
	return all
}

// AbsentNodes returns the nodes that have not ended connections of former translations of an OvnEip, and for which its addresses do not wait.
func AbsentNodes(o client.Object) []string {
	var nodes []string
	for _, release := range o.(*kubeovnv1.OvnEip).Status.Releasing {
		nodes = append(nodes, release.Absent...)
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// WasAbsent reports whether a node has not ended connections of addresses that may have another owner since.
func (n *Networks) WasAbsent(ctx context.Context, node string) (bool, error) {
	var eips kubeovnv1.OvnEipList
	if err := n.reader.List(ctx, &eips, client.MatchingFields{indexAbsent: node}, client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("list OvnEips by absent node: %w", err)
	}
	return len(eips.Items) > 0, nil
}

// Contradicting returns the former translations for whose nodes a port of an address waits: their connections would take its packets to the former owner.
func Contradicting(releasing map[string]kubeovnv1.OvnEipRelease, address netip.Addr, front validation.Front) []kubeovnv1.OvnEipRelease {
	return slices.DeleteFunc(Awaited(releasing), func(r kubeovnv1.OvnEipRelease) bool {
		port := r.Protocol == "" || strings.EqualFold(r.Protocol, string(front.Protocol)) && r.Port == int32(front.Port)
		return r.Source || r.Address != address.String() || !port
	})
}

// UntilReleased describes for messages how the wait for the nodes of former translations ends.
func UntilReleased(releases []kubeovnv1.OvnEipRelease) string {
	var last time.Time
	for _, release := range releases {
		if at := Expires(release); at.After(last) {
			last = at
		}
	}
	return "until the agents of these nodes report it, their Nodes are deleted, or " + last.UTC().Format(time.RFC3339)
}

// DeletedEip returns the problem of a spec with an OvnEip that is being deleted, unless it is the last valid spec of its rule: a new user would keep the OvnEip from being
// deleted.
func DeletedEip(eip *kubeovnv1.OvnEip, last bool) *validation.Problem {
	if eip.DeletionTimestamp == nil || last {
		return nil
	}
	return validation.Invalid("ovnEip: OvnEip %s is being deleted: name another one", eip.Name)
}

// ViewExternal is the part of a VPC's status about its external ports that other objects depend on.
func ViewExternal(vpc *kubeovnv1.Vpc) string {
	view := strings.Join(ConnectedSubnets(vpc), ",")
	if c := apimeta.FindStatusCondition(vpc.Status.Conditions, kubeovnv1.ConditionExternalReady); c != nil {
		view += " " + string(c.Status) + " " + c.Message
	}
	return view
}
