// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package translate turns Kubernetes objects into the northbound rows they stand for. Its functions are pure: typed inputs in,
// rows out; one file per kind of owner.
package translate

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/desired"
)

// Kinds of owners. They are the kinds of the Kubernetes objects that the rows are derived from.
const (
	KindVpc     = "Vpc"
	KindSubnet  = "Subnet"
	KindNode    = "Node"
	KindPod     = "Pod"
	KindService = "Service"
	KindIPPool  = "IPPool"
	KindTransit = "Transit" // reserved: of what leads out of a VPC, which has the VPC's name
	KindVip     = "Vip"

	KindSwitchLBRule = "SwitchLBRule"
	KindRouterLBRule = "RouterLBRule"
)

// Keys of rows that other owners refer to. Row UUIDs follow from them: they never change.
const (
	keyRouter     = "router"
	keyServices   = "services"
	keyPeer       = "peer/"
	keySwitch     = "switch"
	keyRouterPort = "router-port"
	keyDHCP       = "dhcp/"
	keyEgress     = "egress/"
	keyNodes      = "nodes/"
)

// VpcOwner owns the logical router of a VPC, its default routes and its load balancer group.
func VpcOwner(vpc string) desired.Owner { return desired.Owner{Kind: KindVpc, Name: vpc} }

// TransitOwner owns what leads from a VPC to Services and the outside.
func TransitOwner(vpc string) desired.Owner { return desired.Owner{Kind: KindTransit, Name: vpc} }

// SubnetOwner owns the logical switch of a subnet and its connection to the VPC's router.
func SubnetOwner(subnet string) desired.Owner { return desired.Owner{Kind: KindSubnet, Name: subnet} }

// NodeOwner owns a node's port on the join switch, its routing policies and the address sets of these.
func NodeOwner(node string) desired.Owner { return desired.Owner{Kind: KindNode, Name: node} }

// PodOwner owns the logical switch ports of a pod.
func PodOwner(namespace, name string) desired.Owner {
	return desired.Owner{Kind: KindPod, Namespace: namespace, Name: name}
}

// ServiceOwner owns the load balancers of a Service.
func ServiceOwner(namespace, name string) desired.Owner {
	return desired.Owner{Kind: KindService, Namespace: namespace, Name: name}
}

// LBRuleOwner owns the load balancers of a SwitchLBRule or a RouterLBRule.
func LBRuleOwner(kind, name string) desired.Owner { return desired.Owner{Kind: kind, Name: name} }

// RouterRef is the logical router of a VPC.
func RouterRef(vpc string) desired.Ref { return desired.Ref{Owner: VpcOwner(vpc), Key: keyRouter} }

// ServicesRef is the load balancer group of a VPC, which holds the load balancers of its Services.
func ServicesRef(vpc string) desired.Ref { return desired.Ref{Owner: VpcOwner(vpc), Key: keyServices} }

// RouterPortRef is the port of a subnet's router on the subnet's switch.
func RouterPortRef(subnet string) desired.Ref {
	return desired.Ref{Owner: SubnetOwner(subnet), Key: keyRouterPort}
}

// SwitchRef is the logical switch of a subnet.
func SwitchRef(subnet string) desired.Ref {
	return desired.Ref{Owner: SubnetOwner(subnet), Key: keySwitch}
}

// PodPortRef is the logical switch port of a pod.
func PodPortRef(namespace, name string) desired.Ref {
	return desired.Ref{Owner: PodOwner(namespace, name), Key: keyPodPort}
}

// NodeEgressRef is the address set, of one family, of those pods of a VPC on a node whose subnet has a distributed gateway: what
// they send out of the VPC leaves by their own node.
func NodeEgressRef(vpc, node string, family ipfamily.Family) desired.Ref {
	return desired.Ref{Owner: NodeOwner(node), Key: keyEgress + vpc + "/" + family.String()}
}

// NodesRef is the address set, of one family, of the nodes' own addresses in the VPC that they are connected to.
func NodesRef(vpc string, family ipfamily.Family) desired.Ref {
	return desired.Ref{Owner: VpcOwner(vpc), Key: keyNodes + family.String()}
}

// setName is the name of the address set that r stands for. A name that appears in a match must be an identifier (ovn-nb(5),
// `[a-zA-Z_.][a-zA-Z_.0-9]*`), and names made from user names could collide: it is a hash. The owner stands in the row's
// external_ids.
func setName(r desired.Ref) string {
	sum := sha256.Sum256([]byte(r.Owner.String() + "\x00" + r.Key))
	return "a" + hex.EncodeToString(sum[:10])
}

// PortNames are the names of the ports that join a subnet to its VPC's router: the router's and the switch's. taken says that something
// else has one of them.
func PortNames(vpc, subnet string, taken bool) (router, onSwitch string) {
	return portName(vpc, subnet, taken), portName(subnet, vpc, taken)
}

// PeerPortRef is a router's port to a peer.
func PeerPortRef(vpc, remote string) desired.Ref {
	return desired.Ref{Owner: VpcOwner(vpc), Key: keyPeer + remote}
}

// PeerPort is the name of a router's port to a peer.
func PeerPort(vpc, remote string, taken bool) string { return portName(vpc, remote, taken) }

// portName is the name of the port of one router or switch to another. It is Kube-OVN's, `<from>-<to>`, unless something else has it
// or may have it: pods' ports hold a dot, nodes' begin with `node-`, and what northd adds for a gateway port begins with `cr-`. Then a
// hash follows behind an underscore, which no name of Kubernetes holds.
func portName(from, to string, taken bool) string {
	name := from + "-" + to
	if !taken && !strings.Contains(name, ".") && !strings.HasPrefix(name, "node-") && !strings.HasPrefix(name, "cr-") {
		return name
	}
	sum := sha256.Sum256([]byte(from + "\x00" + to))
	return name + "_" + hex.EncodeToString(sum[:4])
}
