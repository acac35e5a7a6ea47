// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Names of the subnets that always exist.
const (
	// DefaultSubnet is the subnet of pods whose namespace is bound to no other subnet.
	DefaultSubnet = "ovn-default"
	// JoinSubnet connects the nodes. Pods get no address of it.
	JoinSubnet = "join"
)

// GatewayType defines where a subnet's traffic leaves the overlay.
// +kubebuilder:validation:Enum="";distributed;centralized
type GatewayType string

// Gateway types.
const (
	// GatewayDistributed: on the node of the pod. The default.
	GatewayDistributed GatewayType = "distributed"
	// GatewayCentralized: on the subnet's gateway nodes.
	GatewayCentralized GatewayType = "centralized"
)

// PortSecurity defines which ports drop packets from addresses other than their own.
// +kubebuilder:validation:Enum=Enforced;Requested
type PortSecurity string

// Values of PortSecurity.
const (
	PortSecurityEnforced  PortSecurity = "Enforced"
	PortSecurityRequested PortSecurity = "Requested"
)

// LabelVpc is the label of a Subnet with the name of its VPC. Users of Kube-OVN select Subnets by it.
const LabelVpc = "ovn.kubernetes.io/vpc"

// SubnetSpec defines a logical switch with the name of the subnet, and the addresses of its ports.
// +kubebuilder:validation:XValidation:rule="!has(self.externalEgressGateway) || self.externalEgressGateway.size() == 0 || !has(self.natOutgoing) || !self.natOutgoing",message="externalEgressGateway and natOutgoing exclude each other"
type SubnetSpec struct {
	// default marks the subnet of pods whose namespace is bound to no other subnet. Only `ovn-default` may set it to true.
	// +optional
	Default bool `json:"default,omitempty"`
	// vpc that the subnet belongs to. `ovn-cluster` when empty.
	// +optional
	Vpc string `json:"vpc,omitempty"`
	// protocol is IPv4, IPv6 or Dual. kube-ovn-controller sets it from cidrBlock.
	// +optional
	// +kubebuilder:validation:Enum="";IPv4;IPv6;Dual;Mac
	Protocol string `json:"protocol,omitempty"`
	// namespaces that are bound to this subnet.
	// +optional
	Namespaces []string `json:"namespaces,omitempty"`
	// namespaceSelectors bind each namespace that at least one of them selects.
	// +optional
	NamespaceSelectors []metav1.LabelSelector `json:"namespaceSelectors,omitempty"`
	// cidrBlock is one CIDR, or one per family separated by a comma.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self == '' || self.split(',').all(c, isCIDR(c.trim())) && [4, 6].all(f, self.split(',').filter(c, isCIDR(c.trim()) && cidr(c.trim()).ip().family() == f).size() <= 1)",message="must be one CIDR, or one of each family with a comma between them, such as 10.16.0.0/16,fd00:10:16::/112"
	CIDRBlock string `json:"cidrBlock,omitempty"`
	// gateway is the address of the router: one per family of cidrBlock, separated by a comma. The default is the first address of each
	// CIDR.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self == '' || self.split(',').all(a, isIP(a.trim())) && [4, 6].all(f, self.split(',').filter(a, isIP(a.trim()) && ip(a.trim()).family() == f).size() <= 1)",message="must be one address, or one of each family with a comma between them, such as 10.16.0.9,fd00::9"
	Gateway string `json:"gateway,omitempty"`
	// excludeIps are addresses, and ranges in the form `10.16.0.10..10.16.0.20`. Only a pod that requests one of them gets it.
	// +optional
	// +kubebuilder:validation:MaxItems=4096
	// +kubebuilder:validation:items:MaxLength=128
	// +kubebuilder:validation:items:XValidation:rule="isIP(self) || isCIDR(self) || self.contains('..') && isIP(self.substring(0, self.indexOf('..'))) && isIP(self.substring(self.indexOf('..') + 2))",message="must be an address or a range like 10.16.0.10..10.16.0.20"
	ExcludeIPs []string `json:"excludeIps,omitempty"`
	// provider is `ovn` (the default), or `<nad>.<namespace>.ovn` for an attachment network. This version supports `ovn` only: a subnet
	// with another provider is not built, and Ready is False.
	// +optional
	Provider string `json:"provider,omitempty"`
	// gatewayType is distributed (the default: traffic leaves on the node of the pod) or centralized (traffic leaves on gateway nodes).
	// This version ignores centralized in custom VPCs.
	// +optional
	GatewayType GatewayType `json:"gatewayType,omitempty"`
	// gatewayNode lists the nodes of a centralized gateway in order of preference, separated by commas. An entry is `node`, or
	// `node:address`: traffic of natOutgoing then leaves that node with this source address.
	// +optional
	// +kubebuilder:validation:MaxLength=65536
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^ *[^ ,:]*(:[ 0-9a-fA-F.:]+)? *(, *[^ ,:]*(:[ 0-9a-fA-F.:]+)? *)*$')`,message="must be names of nodes with commas between them, each alone or with an address, such as worker-1,worker-2:192.0.2.9"
	GatewayNode string `json:"gatewayNode,omitempty"`
	// gatewayNodeSelectors select the nodes of a centralized gateway, in alphabetical order. They are ignored if gatewayNode is set.
	// +optional
	GatewayNodeSelectors []metav1.LabelSelector `json:"gatewayNodeSelectors,omitempty"`
	// enableEcmp distributes the traffic of a centralized gateway over all of its nodes.
	// +optional
	EnableECMP bool `json:"enableEcmp,omitempty"`
	// natOutgoing masquerades traffic that leaves the overlay with the address of the node.
	// +optional
	NATOutgoing bool `json:"natOutgoing,omitempty"`
	// natOutgoingPolicyRules are exceptions to natOutgoing. The first rule that matches a packet decides. Packets without a matching rule
	// are masqueraded.
	// +optional
	NATOutgoingPolicyRules []NATOutgoingPolicyRule `json:"natOutgoingPolicyRules,omitempty"`
	// externalEgressGateway is an external router through which traffic leaves the nodes without NAT: one address, or one per family
	// separated by a comma. It requires policyRoutingPriority and policyRoutingTableID, and excludes natOutgoing. This version ignores it
	// in custom VPCs.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self == '' || self.split(',').all(a, isIP(a.trim())) && [4, 6].all(f, self.split(',').filter(a, isIP(a.trim()) && ip(a.trim()).family() == f).size() <= 1)",message="must be one address, or one of each family with a comma between them, such as 10.16.0.9,fd00::9"
	ExternalEgressGateway string `json:"externalEgressGateway,omitempty"`
	// policyRoutingPriority is the priority of the policy routing rule of externalEgressGateway on nodes (ip-rule(8)): from 1 to 32765.
	// +optional
	// +kubebuilder:validation:Minimum=0
	PolicyRoutingPriority uint32 `json:"policyRoutingPriority,omitempty"`
	// policyRoutingTableID is the table for the routes of externalEgressGateway on nodes. Nothing else may use the table; 253 to 255 are
	// not allowed.
	// +optional
	// +kubebuilder:validation:Minimum=0
	PolicyRoutingTableID uint32 `json:"policyRoutingTableID,omitempty"`
	// mtu of pods, in bytes. When 0, the MTU of the cluster.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	MTU uint32 `json:"mtu,omitempty"`
	// private isolates the pods of the subnet in both directions. They exchange traffic only with each other, with allowSubnets and with
	// their own nodes.
	// +optional
	Private bool `json:"private,omitempty"`
	// allowedNamespaces are additional namespaces whose pods may name a private subnet or an external subnet of a Vpc, besides the namespaces
	// that the subnet serves. `*` is every namespace. For subnets of custom VPCs the VPC has to allow them as well. Any pod of the VPC may
	// name another subnet.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=4096
	AllowedNamespaces []AllowedNamespace `json:"allowedNamespaces,omitempty"`
	// portSecurity Enforced drops packets that a pod sends from addresses other than its own, on every port of the subnet. Requested does
	// so only for pods with the annotation port_security. When empty, tenancy.portSecurity of the OVNCluster applies, which is Enforced by
	// default.
	// +optional
	PortSecurity PortSecurity `json:"portSecurity,omitempty"`
	// podLimits are the highest rates of each port of the subnet's pods. A direction without a rate has the rate and burst of tenancy.podLimits of the
	// OVNCluster.
	// +optional
	PodLimits *PodLimits `json:"podLimits,omitempty"`
	// allowSubnets are CIDRs that may exchange traffic with a private subnet.
	// +optional
	// +kubebuilder:validation:MaxItems=1024
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:XValidation:rule="isCIDR(self)",message="must be a CIDR, such as 10.16.0.0/24"
	AllowSubnets []string `json:"allowSubnets,omitempty"`
	// allowEWTraffic allows traffic between pods of the subnet at ACL priority 1900. It has an effect only together with acls; acls of a
	// higher priority are evaluated first.
	// +optional
	AllowEWTraffic bool `json:"allowEWTraffic,omitempty"`
	// acls of the logical switch. Higher priorities are evaluated first.
	// +optional
	ACLs []ACL `json:"acls,omitempty"`
	// vlan is the Vlan of an underlay subnet, whose pods have addresses of a physical network. gateway is then a router of that network.
	// +optional
	Vlan string `json:"vlan,omitempty"`
	// logicalGateway makes OVN's router the gateway of an underlay subnet, on one node at a time. It has no effect in other subnets.
	// +optional
	LogicalGateway bool `json:"logicalGateway,omitempty"`
	// u2oInterconnection connects an underlay subnet with the overlay subnets of its VPC, by OVN's router, on one node at a time. gateway
	// stays a router of the physical network.
	// +optional
	U2OInterconnection bool `json:"u2oInterconnection,omitempty"`
	// u2oInterconnectionIP is the address of OVN's router in the subnet, at most one per family. By default it is a free address.
	// +optional
	U2OInterconnectionIP string `json:"u2oInterconnectionIP,omitempty"`
	// u2oFeatures of the interconnection.
	// +optional
	U2OFeatures *U2OFeatures `json:"u2oFeatures,omitempty"`
	// disableGatewayCheck starts pods of an underlay subnet without a check that its gateway answers. Pods of other subnets have OVN's gateway, which
	// always answers.
	// +optional
	DisableGatewayCheck bool `json:"disableGatewayCheck,omitempty"`
	// disableInterConnection excludes the subnet from the interconnection of clusters, which this version does not have.
	// +optional
	DisableInterConnection bool `json:"disableInterConnection,omitempty"`
	// enableDHCP makes OVN answer DHCP requests of the ports with their addresses.
	// +optional
	EnableDHCP bool `json:"enableDHCP,omitempty"`
	// dhcpV4Options in the form `key=value,key=value` (ovn-nb(5), DHCP_Options).
	// +optional
	DHCPV4Options string `json:"dhcpV4Options,omitempty"`
	// dhcpV6Options in the form `key=value,key=value` (ovn-nb(5), DHCP_Options).
	// +optional
	DHCPV6Options string `json:"dhcpV6Options,omitempty"`
	// enableIPv6RA makes the router send IPv6 router advertisements.
	// +optional
	EnableIPv6RA bool `json:"enableIPv6RA,omitempty"`
	// ipv6RAConfigs in the form `key=value,key=value` (ovn-nb(5), Logical_Router_Port, ipv6_ra_configs).
	// +optional
	IPv6RAConfigs string `json:"ipv6RAConfigs,omitempty"`
	// vips are addresses that several ports of the subnet may share. They are not allocated to ports automatically.
	// +optional
	// +kubebuilder:validation:MaxItems=1024
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:XValidation:rule="isIP(self)",message="must be an address, such as 10.16.0.9"
	Vips []string `json:"vips,omitempty"`
	// enableLb serves the VPC's Services on this subnet. The default is true, except for the subnet `join`.
	// +optional
	EnableLb *bool `json:"enableLb,omitempty"`
	// enableExternalLBAddress serves load balancer addresses of an underlay subnet. This version ignores it.
	// +optional
	EnableExternalLBAddress bool `json:"enableExternalLBAddress,omitempty"`
	// enableMulticastSnoop forwards multicast only to ports that joined the group (IGMP and MLD snooping).
	// +optional
	EnableMulticastSnoop bool `json:"enableMulticastSnoop,omitempty"`
	// routeTable in which the VPC's router looks up the subnet's traffic. The main table when empty.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?$')`,message="must be letters, digits, dots, hyphens and underscores, and begin and end with a letter or digit"
	RouteTable string `json:"routeTable,omitempty"`
	// nodeNetwork is the name, in the annotation node_networks of nodes, of the addresses that this subnet's tunnels use. This version
	// ignores it.
	// +optional
	NodeNetwork string `json:"nodeNetwork,omitempty"`
}

// Directions of ACLs.
const (
	// ACLFromPort matches packets that a port of the switch sends.
	ACLFromPort = "from-lport"
	// ACLToPort matches packets that a port of the switch receives, including the port of the router.
	ACLToPort = "to-lport"
)

// ACL is one access control rule of a logical switch (ovn-nb(5), ACL).
type ACL struct {
	// direction is from-lport or to-lport.
	// +optional
	// +kubebuilder:validation:Enum=from-lport;to-lport
	Direction string `json:"direction,omitempty"`
	// priority is from 0 to 32767. ACLs with a higher priority are evaluated first.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=32767
	Priority int `json:"priority,omitempty"`
	// match is an OVN match expression (ovn-sb(5), Logical_Flow, match), for example `ip4.src == 10.16.0.0/16 && tcp.dst == 80`.
	// +optional
	Match string `json:"match,omitempty"`
	// action is allow, allow-related, allow-stateless, drop, reject or pass.
	// +optional
	// +kubebuilder:validation:Enum=allow;allow-related;allow-stateless;drop;reject;pass
	Action string `json:"action,omitempty"`
}

// NATOutgoingPolicyAction defines the source address of packets that leave the overlay.
type NATOutgoingPolicyAction string

// Actions of natOutgoingPolicyRules.
const (
	// NATOutgoingPolicyNAT masquerades: the source becomes the address of the gateway node.
	NATOutgoingPolicyNAT NATOutgoingPolicyAction = "nat"
	// NATOutgoingPolicyForward keeps the source address.
	NATOutgoingPolicyForward NATOutgoingPolicyAction = "forward"
)

// NATOutgoingPolicyRule defines for some packets whether natOutgoing masquerades them.
type NATOutgoingPolicyRule struct {
	// +optional
	Match NATOutgoingPolicyMatch `json:"match,omitempty"`
	// action is nat (masquerade) or forward (keep the source address).
	// +optional
	// +kubebuilder:validation:Enum=nat;forward
	Action NATOutgoingPolicyAction `json:"action,omitempty"`
}

// NATOutgoingPolicyMatch selects packets by their addresses.
type NATOutgoingPolicyMatch struct {
	// srcIPs are addresses and CIDRs of the subnet, separated by commas. Empty matches any source.
	// +optional
	// +kubebuilder:validation:Pattern=`^[ ,0-9a-fA-F.:/]*$`
	SrcIPs string `json:"srcIPs,omitempty"`
	// dstIPs are addresses and CIDRs, separated by commas. Empty matches any destination.
	// +optional
	// +kubebuilder:validation:Pattern=`^[ ,0-9a-fA-F.:/]*$`
	DstIPs string `json:"dstIPs,omitempty"`
}

// PhysicalGateway reports whether a router of a physical network is the gateway of the subnet.
func (s *SubnetSpec) PhysicalGateway() bool { return s.Vlan != "" && !s.LogicalGateway }

// OnRouter reports whether the router of the VPC has a port in the subnet.
func (s *SubnetSpec) OnRouter() bool { return s.Vlan == "" || s.LogicalGateway || s.U2OInterconnection }

// SoleNamespace returns the namespace that the subnet lists, or "" if it lists none or may be for several.
func (s *SubnetSpec) SoleNamespace() string {
	if len(s.Namespaces) != 1 || len(s.NamespaceSelectors) > 0 || len(s.AllowedNamespaces) > 0 {
		return ""
	}
	return s.Namespaces[0]
}

// U2OFeatures are options of the interconnection of an underlay subnet with the overlay.
type U2OFeatures struct {
	// overlayOnlyRouting sends traffic to other underlay subnets by the physical router, even if they are interconnected, too.
	// +optional
	OverlayOnlyRouting bool `json:"overlayOnlyRouting,omitempty"`
}

// NATOutgoingPolicyRuleStatus is a rule of natOutgoingPolicyRules that is in effect.
type NATOutgoingPolicyRuleStatus struct {
	// +optional
	RuleID                string `json:"ruleID,omitempty"`
	NATOutgoingPolicyRule `json:",inline"`
}

// SubnetStatus is the observed state of a subnet. Counts of addresses may exceed 64 bits. Counts above 2^53 are rounded, as every JSON
// number in the API server.
type SubnetStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
	// +optional
	// +kubebuilder:default=0
	V4AvailableIPs float64 `json:"v4availableIPs"`
	// v4availableIPrange lists addresses and ranges in the form `10.16.0.2-10.16.255.254`, separated by commas.
	// +optional
	V4AvailableIPRange string `json:"v4availableIPrange"`
	// +optional
	// +kubebuilder:default=0
	V4UsingIPs float64 `json:"v4usingIPs"`
	// +optional
	V4UsingIPRange string `json:"v4usingIPrange"`
	// +optional
	// +kubebuilder:default=0
	V6AvailableIPs float64 `json:"v6availableIPs"`
	// +optional
	V6AvailableIPRange string `json:"v6availableIPrange"`
	// +optional
	// +kubebuilder:default=0
	V6UsingIPs float64 `json:"v6usingIPs"`
	// +optional
	V6UsingIPRange string `json:"v6usingIPrange"`
	// activateGateway is the node of a centralized gateway that forwards the traffic. With enableEcmp it lists all active nodes, separated
	// by commas.
	// +optional
	ActivateGateway string `json:"activateGateway,omitempty"`
	// +optional
	DHCPV4OptionsUUID string `json:"dhcpV4OptionsUUID,omitempty"`
	// +optional
	DHCPV6OptionsUUID string `json:"dhcpV6OptionsUUID,omitempty"`
	// u2oInterconnectionIP is the address of OVN's router in an interconnected underlay subnet.
	// +optional
	U2OInterconnectionIP string `json:"u2oInterconnectionIP,omitempty"`
	// +optional
	U2OInterconnectionMAC string `json:"u2oInterconnectionMAC,omitempty"`
	// +optional
	U2OInterconnectionVPC string `json:"u2oInterconnectionVPC,omitempty"`
	// +optional
	NATOutgoingPolicyRules []NATOutgoingPolicyRuleStatus `json:"natOutgoingPolicyRules,omitempty"`
	// podLimits are the applied limits of the subnet's pods: of its spec, and of the OVNCluster.
	// +optional
	PodLimits *PodLimits `json:"podLimits,omitempty"`
	// validatedSpec is the last spec that was found valid. It is applied while the current spec is invalid or not validated yet.
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	ValidatedSpec *SubnetSpec `json:"validatedSpec,omitempty"`
	// +optional
	McastQuerierIP string `json:"mcastQuerierIP,omitempty"`
	// +optional
	McastQuerierMAC string `json:"mcastQuerierMAC,omitempty"`
}

// Subnet is a logical switch with the addresses of its ports.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=subnets,singular=subnet,shortName=subnet,categories=kiln
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Provider",type=string,priority=1,JSONPath=`.spec.provider`
// +kubebuilder:printcolumn:name="Vpc",type=string,JSONPath=`.spec.vpc`
// +kubebuilder:printcolumn:name="Vlan",type=string,priority=1,JSONPath=`.spec.vlan`
// +kubebuilder:printcolumn:name="Protocol",type=string,priority=1,JSONPath=`.spec.protocol`
// +kubebuilder:printcolumn:name="CIDR",type=string,JSONPath=`.spec.cidrBlock`
// +kubebuilder:printcolumn:name="Private",type=boolean,priority=1,JSONPath=`.spec.private`
// +kubebuilder:printcolumn:name="NAT",type=boolean,priority=1,JSONPath=`.spec.natOutgoing`
// +kubebuilder:printcolumn:name="Default",type=boolean,priority=1,JSONPath=`.spec.default`
// +kubebuilder:printcolumn:name="GatewayType",type=string,priority=1,JSONPath=`.spec.gatewayType`
// +kubebuilder:printcolumn:name="V4Used",type=number,JSONPath=`.status.v4usingIPs`
// +kubebuilder:printcolumn:name="V4Available",type=number,JSONPath=`.status.v4availableIPs`
// +kubebuilder:printcolumn:name="V6Used",type=number,JSONPath=`.status.v6usingIPs`
// +kubebuilder:printcolumn:name="V6Available",type=number,JSONPath=`.status.v6availableIPs`
// +kubebuilder:printcolumn:name="ExcludeIPs",type=string,priority=1,JSONPath=`.spec.excludeIps`
// +kubebuilder:printcolumn:name="U2OInterconnectionIP",type=string,priority=1,JSONPath=`.status.u2oInterconnectionIP`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type Subnet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec SubnetSpec `json:"spec,omitempty"`
	// +optional
	Status SubnetStatus `json:"status,omitempty"`
}

// SubnetList is a list of Subnets.
// +kubebuilder:object:root=true
type SubnetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Subnet `json:"items"`
}
