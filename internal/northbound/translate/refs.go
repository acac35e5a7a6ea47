// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package translate translates Kubernetes objects into northbound rows. Its functions are pure: typed inputs in, rows out.
// There is one file per kind of owner.
package translate

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
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
	KindTransit = "Transit" // reserved: the gateway router of a VPC; the owner has the VPC's name
	KindVip     = "Vip"

	KindSwitchLBRule = "SwitchLBRule"
	KindRouterLBRule = "RouterLBRule"
)

// Keys of rows that other owners refer to. They never change, because row UUIDs derive from them.
const (
	keyRouter     = "router"
	keyServices   = "services"
	keyPeer       = "peer/"
	keySwitch     = "switch"
	keyRouterPort = "router-port"
	keyDHCP       = "dhcp/"
	keyEgress     = "egress/"
	keyNodes      = "nodes/"
	keyShared     = "shared/"
)

// VpcOwner owns the logical router of a VPC, its default routes and its load balancer group.
func VpcOwner(vpc string) desired.Owner { return desired.Owner{Kind: KindVpc, Name: vpc} }

// TransitOwner owns the gateway router of a VPC, and the routes to Services and to networks outside the VPC.
func TransitOwner(vpc string) desired.Owner { return desired.Owner{Kind: KindTransit, Name: vpc} }

// SubnetOwner owns the logical switch of a subnet and its connection to the VPC's router.
func SubnetOwner(subnet string) desired.Owner { return desired.Owner{Kind: KindSubnet, Name: subnet} }

// NodeOwner owns a node's port on the join switch, its routing policies and the address sets that these match.
func NodeOwner(node string) desired.Owner { return desired.Owner{Kind: KindNode, Name: node} }

// PodOwner owns the logical switch ports of a pod, or of the machine that it runs.
func PodOwner(port kubeovnv1.Port) desired.Owner {
	return desired.Owner{Kind: KindPod, Namespace: port.Namespace, Name: port.Owner}
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

// PodPortRef is the logical switch port of a pod. The owner of a pod's rows has one port for each provider.
func PodPortRef(port kubeovnv1.Port) desired.Ref {
	return desired.Ref{Owner: PodOwner(port), Key: port.Provider}
}

// NodeEgressRef is the address set, of one family, of a VPC's pods on a node that may use a distributed gateway: their traffic
// leaves the VPC through their own node.
func NodeEgressRef(vpc, node string, family ipfamily.Family) desired.Ref {
	return desired.Ref{Owner: NodeOwner(node), Key: keyEgress + vpc + "/" + family.String()}
}

// NodesRef is the address set, of one family, of the nodes' own addresses in the VPC to which nodes are connected.
func NodesRef(vpc string, family ipfamily.Family) desired.Ref {
	return desired.Ref{Owner: VpcOwner(vpc), Key: keyNodes + family.String()}
}

// SharedRef is the address set, of one family, of the addresses that pods of a VPC share. Their traffic leaves the VPC through the node that sends it.
func SharedRef(vpc string, family ipfamily.Family) desired.Ref {
	return desired.Ref{Owner: VpcOwner(vpc), Key: keyShared + family.String()}
}

// VipHolder is the allocator's holder name of a Vip. No port has this name.
func VipHolder(name string) string { return "vip/" + name }

// OvnEipHolder is the allocator's holder name of an OvnEip. No port has this name.
func OvnEipHolder(name string) string { return "eip/" + name }

// LocalnetPort is the name of a subnet's port to its physical network. It is Kube-OVN's. A pod `localnet` in the namespace with the name of the subnet has a
// port of the same name.
func LocalnetPort(subnet string) string { return "localnet." + subnet }

// setName returns the name of the address set or port group of r. A name in a match must be an identifier (ovn-nb(5),
// `[a-zA-Z_.][a-zA-Z_.0-9]*`), and names made from user names could collide, so it is a hash. The row's external_ids name the
// owner.
func setName(r desired.Ref) string {
	sum := sha256.Sum256([]byte(r.Owner.String() + "\x00" + r.Key))
	return "a" + hex.EncodeToString(sum[:10])
}

// PortNames returns the names of the two ports that join a subnet to its VPC's router: the router's and the switch's. Set taken
// if another object has one of the names.
func PortNames(vpc, subnet string, taken bool) (router, onSwitch string) {
	return portName(vpc, subnet, taken), portName(subnet, vpc, taken)
}

// PeerPortRef is a router's port to a peer.
func PeerPortRef(vpc, remote string) desired.Ref {
	return desired.Ref{Owner: VpcOwner(vpc), Key: keyPeer + remote}
}

// PeerPort is the name of a router's port to a peer.
func PeerPort(vpc, remote string, taken bool) string { return portName(vpc, remote, taken) }

// portName returns the name of the port of one router or switch to another. It is Kube-OVN's `<from>-<to>`, unless another
// object has that name or may get it: a pod's port name contains a dot, a node's starts with `node-`, and names that northd
// adds for gateway ports start with `cr-`. In these cases an underscore and a hash follow; names of Kubernetes objects contain
// no underscore.
func portName(from, to string, taken bool) string {
	name := from + "-" + to
	if !taken && !strings.Contains(name, ".") && !strings.HasPrefix(name, "node-") && !strings.HasPrefix(name, "cr-") {
		return name
	}
	sum := sha256.Sum256([]byte(from + "\x00" + to))
	return name + "_" + hex.EncodeToString(sum[:4])
}
