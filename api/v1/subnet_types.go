// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Names of the subnets that always exist.
const (
	// DefaultSubnet is the subnet of pods whose namespace is bound to no other.
	DefaultSubnet = "ovn-default"
	// JoinSubnet connects the nodes themselves; pods get no address of it.
	JoinSubnet = "join"
)

// GatewayType is how a subnet's traffic leaves the overlay.
// +kubebuilder:validation:Enum="";distributed;centralized
type GatewayType string

// Gateway types.
const (
	// GatewayDistributed: through the node that the pod is on. The default.
	GatewayDistributed GatewayType = "distributed"
	// GatewayCentralized: through the subnet's gateway nodes.
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

// SubnetSpec is one logical switch of the subnet's name and the addresses of its ports.
// +kubebuilder:validation:XValidation:rule="!has(self.externalEgressGateway) || self.externalEgressGateway.size() == 0 || !has(self.natOutgoing) || !self.natOutgoing",message="externalEgressGateway and natOutgoing exclude each other"
type SubnetSpec struct {
	// default is true for the subnet of pods whose namespace is bound to no other; only `ovn-default` may be it.
	// +optional
	Default bool `json:"default,omitempty"`
	// vpc the subnet belongs to: `ovn-cluster` when empty.
	// +optional
	Vpc string `json:"vpc,omitempty"`
	// protocol is IPv4, IPv6 or Dual. It follows from cidrBlock and need not be given.
	// +optional
	// +kubebuilder:validation:Enum="";IPv4;IPv6;Dual;Mac
	Protocol string `json:"protocol,omitempty"`
	// namespaces bound to this subnet.
	// +optional
	Namespaces []string `json:"namespaces,omitempty"`
	// namespaceSelectors bind the namespaces that any of them selects.
	// +optional
	NamespaceSelectors []metav1.LabelSelector `json:"namespaceSelectors,omitempty"`
	// cidrBlock is one CIDR, or one of each family with a comma between them.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self == '' || self.split(',').all(c, isCIDR(c.trim())) && [4, 6].all(f, self.split(',').filter(c, isCIDR(c.trim()) && cidr(c.trim()).ip().family() == f).size() <= 1)",message="must be one CIDR, or one of each family with a comma between them"
	CIDRBlock string `json:"cidrBlock,omitempty"`
	// gateway is the router's address, one of each family of cidrBlock with a comma between them. The first address of the CIDR
	// when empty.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self == '' || self.split(',').all(a, isIP(a.trim())) && [4, 6].all(f, self.split(',').filter(a, isIP(a.trim()) && ip(a.trim()).family() == f).size() <= 1)",message="must be one address, or one of each family with a comma between them"
	Gateway string `json:"gateway,omitempty"`
	// excludeIps are never given to a pod that does not ask for them: addresses, and ranges in the form `10.16.0.10..10.16.0.20`.
	// +optional
	// +kubebuilder:validation:MaxItems=4096
	// +kubebuilder:validation:items:MaxLength=128
	// +kubebuilder:validation:items:XValidation:rule="isIP(self) || isCIDR(self) || self.contains('..') && isIP(self.substring(0, self.indexOf('..'))) && isIP(self.substring(self.indexOf('..') + 2))",message="must be an address or a range like 10.16.0.10..10.16.0.20"
	ExcludeIPs []string `json:"excludeIps,omitempty"`
	// provider is `ovn` (the default), or `<nad>.<namespace>.ovn` for an attachment network.
	// +optional
	Provider string `json:"provider,omitempty"`
	// gatewayType is distributed (the default) or centralized.
	// +optional
	GatewayType GatewayType `json:"gatewayType,omitempty"`
	// gatewayNode lists the nodes of a centralized gateway, the preferred one first, with commas between them: `node`, or
	// `node:address` for traffic of natOutgoing to leave that node with this address.
	// +optional
	// +kubebuilder:validation:Pattern=`^ *[^ ,:]*(:[ 0-9a-fA-F.:]+)? *(, *[^ ,:]*(:[ 0-9a-fA-F.:]+)? *)*$`
	GatewayNode string `json:"gatewayNode,omitempty"`
	// gatewayNodeSelectors select the nodes of a centralized gateway, in the order of their names, where gatewayNode names none.
	// +optional
	GatewayNodeSelectors []metav1.LabelSelector `json:"gatewayNodeSelectors,omitempty"`
	// enableEcmp spreads a centralized gateway's traffic over all its nodes.
	// +optional
	EnableECMP bool `json:"enableEcmp,omitempty"`
	// natOutgoing masquerades what leaves the overlay with the node's address.
	// +optional
	NATOutgoing bool `json:"natOutgoing,omitempty"`
	// natOutgoingPolicyRules say, in order, what natOutgoing masquerades and what not. What none of them matches is masqueraded.
	// +optional
	NATOutgoingPolicyRules []NATOutgoingPolicyRule `json:"natOutgoingPolicyRules,omitempty"`
	// externalEgressGateway is the router outside through which traffic leaves the nodes, untranslated: one address, or one of each
	// family with a comma between them. It takes policyRoutingPriority and policyRoutingTableID, and excludes natOutgoing.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self == '' || self.split(',').all(a, isIP(a.trim())) && [4, 6].all(f, self.split(',').filter(a, isIP(a.trim()) && ip(a.trim()).family() == f).size() <= 1)",message="must be one address, or one of each family with a comma between them"
	ExternalEgressGateway string `json:"externalEgressGateway,omitempty"`
	// policyRoutingPriority of the rule of externalEgressGateway on nodes (ip-rule(8)): from 1 to 32765.
	// +optional
	// +kubebuilder:validation:Minimum=0
	PolicyRoutingPriority uint32 `json:"policyRoutingPriority,omitempty"`
	// policyRoutingTableID of the routes of externalEgressGateway on nodes: a table that nothing else uses, not 253 to 255.
	// +optional
	// +kubebuilder:validation:Minimum=0
	PolicyRoutingTableID uint32 `json:"policyRoutingTableID,omitempty"`
	// mtu of pods, in bytes; the cluster's when 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	MTU uint32 `json:"mtu,omitempty"`
	// private keeps the subnet's pods apart from everything but one another, allowSubnets and the nodes that they run on, in both
	// directions.
	// +optional
	Private bool `json:"private,omitempty"`
	// allowedNamespaces are additional namespaces whose pods may name a private subnet, besides the namespaces that the subnet serves. `*`
	// is every namespace. For subnets of custom VPCs the VPC has to allow them as well. Any pod of the VPC may name a subnet that is not
	// private.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=4096
	AllowedNamespaces []AllowedNamespace `json:"allowedNamespaces,omitempty"`
	// portSecurity Enforced drops packets that a pod sends from addresses other than its own, on every port of the subnet. Requested does
	// so only for pods with the annotation port_security. When empty, tenancy.portSecurity of the OVNCluster applies, which is Enforced by
	// default.
	// +optional
	PortSecurity PortSecurity `json:"portSecurity,omitempty"`
	// allowSubnets are CIDRs that may exchange traffic with a private subnet.
	// +optional
	// +kubebuilder:validation:MaxItems=1024
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:XValidation:rule="isCIDR(self)",message="must be a CIDR"
	AllowSubnets []string `json:"allowSubnets,omitempty"`
	// allowEWTraffic lets the pods of the subnet talk to one another before acls are looked at.
	// +optional
	AllowEWTraffic bool `json:"allowEWTraffic,omitempty"`
	// acls of the logical switch.
	// +optional
	ACLs []ACL `json:"acls,omitempty"`
	// vlan makes this an underlay subnet on that Vlan.
	// +optional
	Vlan string `json:"vlan,omitempty"`
	// logicalGateway lets OVN's router be the gateway of an underlay subnet.
	// +optional
	LogicalGateway bool `json:"logicalGateway,omitempty"`
	// u2oInterconnection connects an underlay subnet with the overlay subnets of its VPC.
	// +optional
	U2OInterconnection bool `json:"u2oInterconnection,omitempty"`
	// u2oInterconnectionIP is the router's address in the underlay subnet.
	// +optional
	U2OInterconnectionIP string `json:"u2oInterconnectionIP,omitempty"`
	// u2oFeatures of the interconnection.
	// +optional
	U2OFeatures *U2OFeatures `json:"u2oFeatures,omitempty"`
	// disableGatewayCheck starts pods without waiting for the gateway's answer.
	// +optional
	DisableGatewayCheck bool `json:"disableGatewayCheck,omitempty"`
	// disableInterConnection keeps the subnet out of the interconnection of clusters.
	// +optional
	DisableInterConnection bool `json:"disableInterConnection,omitempty"`
	// enableDHCP answers DHCP requests of ports.
	// +optional
	EnableDHCP bool `json:"enableDHCP,omitempty"`
	// dhcpV4Options in the form `key=value,key=value` (ovn-nb(5), DHCP_Options).
	// +optional
	DHCPV4Options string `json:"dhcpV4Options,omitempty"`
	// dhcpV6Options in the form `key=value,key=value` (ovn-nb(5), DHCP_Options).
	// +optional
	DHCPV6Options string `json:"dhcpV6Options,omitempty"`
	// enableIPv6RA sends router advertisements.
	// +optional
	EnableIPv6RA bool `json:"enableIPv6RA,omitempty"`
	// ipv6RAConfigs in the form `key=value,key=value` (ovn-nb(5), Logical_Router_Port, ipv6_ra_configs).
	// +optional
	IPv6RAConfigs string `json:"ipv6RAConfigs,omitempty"`
	// vips are addresses that several ports of the subnet may share.
	// +optional
	// +kubebuilder:validation:MaxItems=1024
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:XValidation:rule="isIP(self)",message="must be an address"
	Vips []string `json:"vips,omitempty"`
	// enableLb serves the VPC's Services on this subnet; true when left out.
	// +optional
	EnableLb *bool `json:"enableLb,omitempty"`
	// enableExternalLBAddress serves load balancer addresses of an underlay subnet.
	// +optional
	EnableExternalLBAddress bool `json:"enableExternalLBAddress,omitempty"`
	// enableMulticastSnoop limits multicast to the ports that asked for it.
	// +optional
	EnableMulticastSnoop bool `json:"enableMulticastSnoop,omitempty"`
	// routeTable of the subnet's router port; the main one when empty.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?$`
	RouteTable string `json:"routeTable,omitempty"`
	// nodeNetwork is the name, in the nodes' annotation node_networks, of the addresses that this subnet's tunnels use.
	// +optional
	NodeNetwork string `json:"nodeNetwork,omitempty"`
}

// Directions of ACLs.
const (
	// ACLFromPort is of packets that a port of the switch sends.
	ACLFromPort = "from-lport"
	// ACLToPort is of packets that a port of the switch, the router's included, receives.
	ACLToPort = "to-lport"
)

// ACL is one access control rule of a logical switch (ovn-nb(5), ACL).
type ACL struct {
	// direction is from-lport or to-lport.
	// +optional
	// +kubebuilder:validation:Enum=from-lport;to-lport
	Direction string `json:"direction,omitempty"`
	// priority is from 0 to 32767; the greater one is looked at first.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=32767
	Priority int `json:"priority,omitempty"`
	// match selects packets in OVN's language (ovn-sb(5), Logical_Flow, match), like `ip4.src == 10.16.0.0/16 && tcp.dst == 80`.
	// +optional
	Match string `json:"match,omitempty"`
	// action is allow, allow-related, allow-stateless, drop, reject or pass.
	// +optional
	// +kubebuilder:validation:Enum=allow;allow-related;allow-stateless;drop;reject;pass
	Action string `json:"action,omitempty"`
}

// NATOutgoingPolicyAction is what becomes of the source address of what leaves the overlay.
type NATOutgoingPolicyAction string

// Actions of natOutgoingPolicyRules.
const (
	// NATOutgoingPolicyNAT: it becomes that of the gateway.
	NATOutgoingPolicyNAT NATOutgoingPolicyAction = "nat"
	// NATOutgoingPolicyForward: it stays.
	NATOutgoingPolicyForward NATOutgoingPolicyAction = "forward"
)

// NATOutgoingPolicyRule is one rule of what is masqueraded.
type NATOutgoingPolicyRule struct {
	// +optional
	Match NATOutgoingPolicyMatch `json:"match,omitempty"`
	// action is nat, which masquerades, or forward, which leaves the source address as it is.
	// +optional
	// +kubebuilder:validation:Enum=nat;forward
	Action NATOutgoingPolicyAction `json:"action,omitempty"`
}

// NATOutgoingPolicyMatch selects packets by their addresses.
type NATOutgoingPolicyMatch struct {
	// srcIPs are addresses and CIDRs of the subnet with commas between them; any when empty.
	// +optional
	// +kubebuilder:validation:Pattern=`^[ ,0-9a-fA-F.:/]*$`
	SrcIPs string `json:"srcIPs,omitempty"`
	// dstIPs are addresses and CIDRs with commas between them; any when empty.
	// +optional
	// +kubebuilder:validation:Pattern=`^[ ,0-9a-fA-F.:/]*$`
	DstIPs string `json:"dstIPs,omitempty"`
}

// U2OFeatures of the interconnection of an underlay subnet with the overlay.
type U2OFeatures struct {
	// overlayOnlyRouting sends only the overlay's traffic through the router.
	// +optional
	OverlayOnlyRouting bool `json:"overlayOnlyRouting,omitempty"`
}

// NATOutgoingPolicyRuleStatus is one rule as it is in force.
type NATOutgoingPolicyRuleStatus struct {
	// +optional
	RuleID                string `json:"ruleID,omitempty"`
	NATOutgoingPolicyRule `json:",inline"`
}

// SubnetStatus is what the controller sees of a subnet. Counts of addresses are numbers that may exceed 64 bits: past 2^53 they
// are rounded, as in every JSON number that the API server stores.
type SubnetStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
	// +optional
	V4AvailableIPs float64 `json:"v4availableIPs"`
	// v4availableIPrange lists addresses and ranges in the form `10.16.0.2-10.16.255.254`, with commas between them.
	// +optional
	V4AvailableIPRange string `json:"v4availableIPrange"`
	// +optional
	V4UsingIPs float64 `json:"v4usingIPs"`
	// +optional
	V4UsingIPRange string `json:"v4usingIPrange"`
	// +optional
	V6AvailableIPs float64 `json:"v6availableIPs"`
	// +optional
	V6AvailableIPRange string `json:"v6availableIPrange"`
	// +optional
	V6UsingIPs float64 `json:"v6usingIPs"`
	// +optional
	V6UsingIPRange string `json:"v6usingIPrange"`
	// activateGateway is the node of a centralized gateway that carries the traffic; with enableEcmp all that do, with commas between them.
	// +optional
	ActivateGateway string `json:"activateGateway,omitempty"`
	// +optional
	DHCPV4OptionsUUID string `json:"dhcpV4OptionsUUID,omitempty"`
	// +optional
	DHCPV6OptionsUUID string `json:"dhcpV6OptionsUUID,omitempty"`
	// +optional
	U2OInterconnectionIP string `json:"u2oInterconnectionIP,omitempty"`
	// +optional
	U2OInterconnectionMAC string `json:"u2oInterconnectionMAC,omitempty"`
	// +optional
	U2OInterconnectionVPC string `json:"u2oInterconnectionVPC,omitempty"`
	// +optional
	NATOutgoingPolicyRules []NATOutgoingPolicyRuleStatus `json:"natOutgoingPolicyRules,omitempty"`
	// validatedSpec is the spec in which nothing was found wrong last, without its ACLs. Nodes go by it while the present one is wrong, or
	// was not looked at yet.
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

// Subnet is one logical switch with its addresses.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=subnets,singular=subnet,shortName=subnet
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Provider",type=string,JSONPath=`.spec.provider`
// +kubebuilder:printcolumn:name="Vpc",type=string,JSONPath=`.spec.vpc`
// +kubebuilder:printcolumn:name="Vlan",type=string,JSONPath=`.spec.vlan`
// +kubebuilder:printcolumn:name="Protocol",type=string,JSONPath=`.spec.protocol`
// +kubebuilder:printcolumn:name="CIDR",type=string,JSONPath=`.spec.cidrBlock`
// +kubebuilder:printcolumn:name="Private",type=boolean,JSONPath=`.spec.private`
// +kubebuilder:printcolumn:name="NAT",type=boolean,JSONPath=`.spec.natOutgoing`
// +kubebuilder:printcolumn:name="Default",type=boolean,JSONPath=`.spec.default`
// +kubebuilder:printcolumn:name="GatewayType",type=string,JSONPath=`.spec.gatewayType`
// +kubebuilder:printcolumn:name="V4Used",type=number,JSONPath=`.status.v4usingIPs`
// +kubebuilder:printcolumn:name="V4Available",type=number,JSONPath=`.status.v4availableIPs`
// +kubebuilder:printcolumn:name="V6Used",type=number,JSONPath=`.status.v6usingIPs`
// +kubebuilder:printcolumn:name="V6Available",type=number,JSONPath=`.status.v6availableIPs`
// +kubebuilder:printcolumn:name="ExcludeIPs",type=string,JSONPath=`.spec.excludeIps`
// +kubebuilder:printcolumn:name="U2OInterconnectionIP",type=string,JSONPath=`.status.u2oInterconnectionIP`
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
