// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"fmt"
	"net/netip"
	"strconv"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// Kinds of owners of ACLs.
const (
	KindNetworkPolicy              = "NetworkPolicy"
	KindAdminNetworkPolicy         = "AdminNetworkPolicy"
	KindBaselineAdminNetworkPolicy = "BaselineAdminNetworkPolicy"
	KindClusterNetworkPolicy       = "ClusterNetworkPolicy"
)

// Kinds of owners of rows that policies share: a set of pods, which exists while any policy uses it, and the rules for every
// isolated pod.
const (
	KindPodSet    = "PodSet"
	KindIsolation = "Isolation"
)

const (
	keySetPorts = "ports"
	idSelector  = "selector"
)

// NetworkPolicyOwner owns the ACLs of a NetworkPolicy.
func NetworkPolicyOwner(namespace, name string) desired.Owner {
	return desired.Owner{Kind: KindNetworkPolicy, Namespace: namespace, Name: name}
}

// ClusterPolicyOwner owns the ACLs of a cluster-wide policy of one of the kinds above.
func ClusterPolicyOwner(kind, name string) desired.Owner {
	return desired.Owner{Kind: kind, Name: name}
}

// PodSetOwner owns the rows of a set of pods.
func PodSetOwner(name string) desired.Owner { return desired.Owner{Kind: KindPodSet, Name: name} }

// IsolationOwner owns the rules for every pod that any policy isolates.
func IsolationOwner() desired.Owner { return desired.Owner{Kind: KindIsolation, Name: "pods"} }

// isolatedRef is the port group of all pods that any policy or security group selects.
func isolatedRef() desired.Ref { return desired.Ref{Owner: IsolationOwner(), Key: keySetPorts} }

// groupedRef is the port group of the pods to which security groups apply in a tier.
func groupedRef(tier int) desired.Ref {
	return desired.Ref{Owner: IsolationOwner(), Key: fmt.Sprintf("grouped/%d", tier)}
}

// SubjectsRef is the port group of a set of pods.
func SubjectsRef(set string) desired.Ref {
	return desired.Ref{Owner: PodSetOwner(set), Key: keySetPorts}
}

// PeersRef is the address set, of one family, of a part of a set of pods.
func PeersRef(part PodSetPart, family ipfamily.Family) desired.Ref {
	key := familyName(family)
	if part.Number != 0 {
		key += "/" + strconv.Itoa(int(part.Number))
	}
	return desired.Ref{Owner: PodSetOwner(part.Name), Key: key}
}

// PodSetInputs are the inputs of PodSet.
type PodSetInputs struct {
	Name string
	// Selector describes the selected pods in text.
	Selector string
	// Subjects is set for a set that policies apply to, which is a port group. A set of peers is address sets.
	Subjects bool
	// Numbers are the numbers of the named port of the set; only 0 for a set without a named port.
	Numbers []int32
	// HostAddresses are the addresses of nodes with host-network pods in the set, by Number.
	HostAddresses map[int32][]netip.Addr
}

// PodSet returns the port group or the address sets of a set of pods. The rows of pods add their own memberships.
func PodSet(in PodSetInputs) []desired.Row {
	ids := map[string]string{idSelector: in.Selector}
	if in.Subjects {
		ref := SubjectsRef(in.Name)
		return []desired.Row{{Key: ref.Key, Model: &nb.PortGroup{Name: setName(ref), ExternalIDs: ids}}}
	}
	var rows []desired.Row
	for _, number := range in.Numbers {
		for _, family := range []ipfamily.Family{ipfamily.IPv4, ipfamily.IPv6} {
			ref := PeersRef(PodSetPart{Name: in.Name, Number: number}, family)
			row := desired.Row{Key: ref.Key, Model: &nb.AddressSet{Name: setName(ref), ExternalIDs: ids}}
			for _, a := range in.HostAddresses[number] {
				if ipfamily.Of(a) == family {
					row.Elements = append(row.Elements, desired.Element{Of: desired.SetAddresses(ref), Value: a.String()})
				}
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// PodPolicy lists the port groups and address sets of policies that a pod's port joins.
type PodPolicy struct {
	// Subjects are names of sets, Peers parts of sets.
	Subjects []string
	Peers    []PodSetPart
	// Grouped are the tiers in which security groups apply to the pod.
	Grouped []int
}

// join adds a pod's row to its groups and address sets, in the transaction that creates its port.
func (in PodPolicy) join(row *desired.Row, addresses []netip.Addr) {
	if len(in.Subjects)+len(in.Grouped) > 0 {
		row.Members = append(row.Members, desired.GroupPorts(isolatedRef()))
	}
	for _, tier := range in.Grouped {
		row.Members = append(row.Members, desired.GroupPorts(groupedRef(tier)))
	}
	for _, name := range in.Subjects {
		row.Members = append(row.Members, desired.GroupPorts(SubjectsRef(name)))
	}
	for _, part := range in.Peers {
		for _, a := range addresses {
			set := desired.SetAddresses(PeersRef(part, ipfamily.Of(a)))
			row.Elements = append(row.Elements, desired.Element{Of: set, Value: a.String()})
		}
	}
}

// PolicyNode is a node for the purposes of policies.
type PolicyNode struct {
	Name string
	// Addresses are the node's own and its port's.
	Addresses []netip.Addr
}

// IsolationInputs are the inputs of Isolation.
type IsolationInputs struct {
	Nodes []PolicyNode
	// Grouped is set if any pod is in a security group.
	Grouped bool
}

// Isolation returns the port group of all isolated pods, with the ACLs that always allow
//
//   - traffic from the pod's own node, for kubelet's probes;
//   - traffic of a pod to itself through a Service;
//   - requests to DHCP servers, which OVN answers;
//   - answers to the health checks of load balancers, which go to ovn-controller.
//
// If Grouped is set it also returns the port groups of pods in security groups, with their default drops.
func Isolation(in IsolationInputs) []desired.Row {
	ref := isolatedRef()
	group, acls := setName(ref), desired.GroupACLs(ref)
	rows := []desired.Row{{Key: ref.Key, Model: &nb.PortGroup{Name: group, ExternalIDs: map[string]string{idSelector: "any policy"}}}}
	always := func(key string, acl *nb.ACL) {
		acl.Action, acl.Name = nb.ACLActionAllowRelated, new(cut("always/"+key))
		rows = append(rows, desired.Row{Key: "acl/" + key, Model: acl, Parent: &acls})
	}
	for _, node := range in.Nodes {
		for _, family := range []ipfamily.Family{ipfamily.IPv4, ipfamily.IPv6} {
			var own []string
			for _, a := range node.Addresses {
				if ipfamily.Of(a) == family {
					own = append(own, a.String())
				}
			}
			if len(own) == 0 {
				continue
			}
			ip := familyName(family)
			always("node/"+node.Name+"/"+ip, &nb.ACL{
				Direction: nb.ACLDirectionToLport, Tier: TierAdmin, Priority: priorityAboveAll,
				Match: fmt.Sprintf("outport == @%s && %s.src == %s && is_chassis_resident(%q)", group, ip, oneOf(own), NodePort(node.Name)),
			})
		}
	}
	for _, source := range HairpinSources {
		ip := familyName(ipfamily.Of(source))
		always("hairpin/"+ip, &nb.ACL{
			Direction: nb.ACLDirectionToLport, Tier: TierAdmin, Priority: priorityAboveAll,
			// OVN sets the flag on packets that a load balancer returns to their own sender (ovn-northd(8), "Ingress Table: Hairpin"), and
			// clears it between datapaths. Packets that a pod itself sends with this source do not have it.
			Match: fmt.Sprintf("outport == @%s && %s.src == %s && flags.loopback", group, ip, source),
		})
	}
	// northd allows these answers in egress rules before load balancing; Kiln's egress rules are evaluated after it.
	check := aclOn(group, Egress, "eth.dst == $svc_monitor_mac")
	check.Tier, check.Priority = TierAdmin, priorityAboveAll
	always("health-check", check)
	for _, ip := range []string{"ip4", "ip6"} {
		client, server := dhcpPorts(ip)
		acl := aclOn(group, Egress, ip, fmt.Sprintf("udp.src == %d && udp.dst == %d", client, server))
		acl.Tier, acl.Priority = TierPolicy, priorityDHCP
		always("dhcp/"+ip, acl)
	}
	if in.Grouped {
		rows = append(rows, grouped()...)
	}
	return rows
}
