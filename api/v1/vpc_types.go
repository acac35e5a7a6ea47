// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DefaultVpc is the name of the VPC that nodes, services and every subnet without a VPC belong to. It always exists.
const DefaultVpc = "ovn-cluster"

// ClusterAccess defines the access of a custom VPC to the Services of the cluster and to destinations outside of it.
// +kubebuilder:validation:Enum=Services;None
type ClusterAccess string

// Values of ClusterAccess.
const (
	// ClusterAccessServices: pods reach the Services of the default VPC, including cluster DNS and the API server. Pods of subnets with
	// natOutgoing also reach destinations outside the cluster.
	ClusterAccessServices ClusterAccess = "Services"
	// ClusterAccessNone: pods reach only their own VPC and its peers.
	ClusterAccessNone ClusterAccess = "None"
)

// AllowedNamespace is the name of a namespace, or AllNamespaces.
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:XValidation:rule=`self.matches(r'^([a-z0-9]([-a-z0-9]*[a-z0-9])?|\*)$')`,message="must be the name of a namespace, or * for all"
type AllowedNamespace string

// AllNamespaces in allowedNamespaces stands for every namespace.
const AllNamespaces AllowedNamespace = "*"

// VpcSpec defines a routing domain: one logical router with the name of the VPC.
type VpcSpec struct {
	// namespaces whose pods and Services may use this VPC. Their pods get addresses from the subnets of the VPC that serve these
	// namespaces. A namespace belongs to at most one VPC.
	// +optional
	Namespaces []string `json:"namespaces,omitempty"`
	// allowedNamespaces are additional namespaces whose pods and Services may use this VPC if they name it: a pod with the annotation
	// logical_switch, a Service with logical_router. `*` is every namespace.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=4096
	AllowedNamespaces []AllowedNamespace `json:"allowedNamespaces,omitempty"`
	// defaultSubnet is the subnet that the namespaces of this VPC use first.
	// +optional
	DefaultSubnet string `json:"defaultSubnet,omitempty"`
	// staticRoutes of the logical router.
	// +optional
	// +kubebuilder:validation:MaxItems=1024
	StaticRoutes []*StaticRoute `json:"staticRoutes,omitempty"`
	// policyRoutes of the logical router, evaluated by priority and before its static routes.
	// +optional
	PolicyRoutes []*PolicyRoute `json:"policyRoutes,omitempty"`
	// vpcPeerings link this router with the routers of other VPCs. A link exists only if both VPCs list each other.
	// +optional
	VpcPeerings []*VpcPeering `json:"vpcPeerings,omitempty"`
	// enableExternal adds a port of the router in the external subnet `external`, unless extraExternalSubnets has subnets.
	// +optional
	EnableExternal bool `json:"enableExternal,omitempty"`
	// extraExternalSubnets are underlay subnets of the default VPC in which the router has a port, instead of `external`. The default route of a custom VPC leads through
	// the first one that has a port of its family.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	ExtraExternalSubnets []string `json:"extraExternalSubnets,omitempty"`
	// enableBfd runs a BFD session between each external port of the router and the physical router of its subnet, in each family. If only one external subnet has a
	// family, the default route of this family is used while the session is up.
	// +optional
	EnableBfd bool `json:"enableBfd,omitempty"`
	// bfdPort is a dedicated router port for BFD with gateways. This version ignores it: OVN runs BFD on external ports of the router only.
	// +optional
	BFDPort *BFDPort `json:"bfdPort,omitempty"`
	// clusterAccess of a custom VPC. Services lets its pods reach the cluster's Services, including DNS and the API server, and from
	// subnets with natOutgoing also destinations outside the cluster. None denies all of these. When empty, tenancy.clusterAccess of the
	// OVNCluster applies, which is None by default. The cluster's Services are in the default VPC.
	// +optional
	ClusterAccess ClusterAccess `json:"clusterAccess,omitempty"`
}

// RoutePolicy selects the address of a packet that a static route matches: destination or source.
// +kubebuilder:validation:Enum="";policyDst;policySrc
type RoutePolicy string

// Route policies.
const (
	RouteByDestination RoutePolicy = "policyDst"
	RouteBySource      RoutePolicy = "policySrc"
)

// StaticRoute is a static route of a VPC's router.
type StaticRoute struct {
	// policy is policyDst (match the destination address, the default) or policySrc (match the source address).
	// +optional
	Policy RoutePolicy `json:"policy,omitempty"`
	// cidr is the CIDR or address that the route matches.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="isCIDR(self) || isIP(self)",message="must be a CIDR or an address, such as 192.168.0.0/16"
	CIDR string `json:"cidr,omitempty"`
	// nextHopIP is the address of the next hop.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="isIP(self)",message="must be an address, such as 10.16.0.2"
	NextHopIP string `json:"nextHopIP,omitempty"`
	// ecmpMode is empty or ecmp_symmetric_reply, which OVN ignores on the router of a VPC.
	// +optional
	ECMPMode string `json:"ecmpMode,omitempty"`
	// bfdId, any text that is not empty, makes the route depend on a BFD session with its next hop, which is in an external subnet of the VPC. The text does not select
	// a session.
	// +optional
	BFDID string `json:"bfdId,omitempty"`
	// routeTable that the route belongs to. The main table when empty.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?$')`,message="must be letters, digits, dots, hyphens and underscores, and begin and end with a letter or digit"
	RouteTable string `json:"routeTable,omitempty"`
}

// PolicyRouteAction defines the action of a policy route on matching packets.
// +kubebuilder:validation:Enum=allow;drop;reroute
type PolicyRouteAction string

// Actions of policy routes.
const (
	PolicyRouteAllow   PolicyRouteAction = "allow"
	PolicyRouteDrop    PolicyRouteAction = "drop"
	PolicyRouteReroute PolicyRouteAction = "reroute"
)

// PolicyRoute is a policy route of a VPC's logical router.
type PolicyRoute struct {
	// priority is from 0 to 32767. Routes with a higher priority are evaluated first.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=32767
	Priority int `json:"priority,omitempty"`
	// match is an OVN match expression (ovn-sb(5), Logical_Flow).
	// +optional
	Match string `json:"match,omitempty"`
	// action is allow, drop or reroute.
	// +optional
	Action PolicyRouteAction `json:"action,omitempty"`
	// nextHopIP of action reroute: one address, or several separated by commas.
	// +optional
	// +kubebuilder:validation:Pattern=`^[0-9A-Fa-f:., ]*$`
	NextHopIP string `json:"nextHopIP,omitempty"`
}

// VpcPeering is this VPC's end of a link between two routers.
type VpcPeering struct {
	// remoteVpc is the other VPC.
	// +optional
	RemoteVpc string `json:"remoteVpc,omitempty"`
	// localConnectIP is the address of this end of the link with its prefix length: one, or one per family separated by a comma.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[0-9A-Fa-f:.]+/[0-9]+( *, *[0-9A-Fa-f:.]+/[0-9]+)*$`
	LocalConnectIP string `json:"localConnectIP,omitempty"`
}

// BFDPort is a router port for BFD.
type BFDPort struct {
	// enabled adds the port.
	// +optional
	// +kubebuilder:default=false
	Enabled bool `json:"enabled"`
	// ip is the address of the port: one, or one per family separated by a comma.
	// +optional
	IP string `json:"ip,omitempty"`
	// nodeSelector selects the nodes that may host the port.
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`
}

// VpcStatus is the observed state of a VPC.
type VpcStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
	// validatedSpec is the last spec without a problem of its own. It is applied while the current spec is invalid or not validated yet. A
	// Vpc that was never valid has none: the valid entries of its spec are applied.
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	ValidatedSpec *VpcSpec `json:"validatedSpec,omitempty"`
	// standby is true if the logical router exists.
	// +optional
	Standby bool `json:"standby"`
	// default is true for the default VPC.
	// +optional
	Default bool `json:"default"`
	// defaultLogicalSwitch is the subnet that the namespaces of this VPC use first.
	// +optional
	DefaultLogicalSwitch string `json:"defaultLogicalSwitch,omitempty"`
	// router is the name of the logical router.
	// +optional
	Router string `json:"router,omitempty"`
	// +optional
	TCPLoadBalancer string `json:"tcpLoadBalancer,omitempty"`
	// +optional
	UDPLoadBalancer string `json:"udpLoadBalancer,omitempty"`
	// +optional
	SCTPLoadBalancer string `json:"sctpLoadBalancer,omitempty"`
	// +optional
	TCPSessionLoadBalancer string `json:"tcpSessionLoadBalancer,omitempty"`
	// +optional
	UDPSessionLoadBalancer string `json:"udpSessionLoadBalancer,omitempty"`
	// +optional
	SCTPSessionLoadBalancer string `json:"sctpSessionLoadBalancer,omitempty"`
	// subnets of this VPC, sorted by name.
	// +optional
	Subnets []string `json:"subnets,omitempty"`
	// vpcPeerings are the VPCs that this VPC is linked with.
	// +optional
	VpcPeerings []string `json:"vpcPeerings,omitempty"`
	// +optional
	EnableExternal bool `json:"enableExternal"`
	// +optional
	ExtraExternalSubnets []string `json:"extraExternalSubnets,omitempty"`
	// enableBfd is true if spec.enableBfd is applied: there are sessions with physical routers.
	// +optional
	EnableBfd bool `json:"enableBfd"`
	// bfdSessions are the BFD sessions of external ports: for enableBfd, and for bfdId of static routes.
	// +optional
	// +listType=atomic
	BFDSessions []BFDSession `json:"bfdSessions,omitempty"`
	// +optional
	BFDPort *BFDPortStatus `json:"bfdPort,omitempty"`
	// transit describes how traffic that clusterAccess allows leaves a custom VPC.
	// +optional
	Transit *VpcTransit `json:"transit,omitempty"`
}

// VpcTransit describes the gateway of a custom VPC to the default VPC.
type VpcTransit struct {
	// addresses of the join subnet that nodes see as source instead of the pod addresses. At most one per family.
	// +optional
	Addresses []string `json:"addresses,omitempty"`
	// node that forwards the traffic.
	// +optional
	Node string `json:"node,omitempty"`
	// standby is the node that takes over when node fails.
	// +optional
	Standby string `json:"standby,omitempty"`
}

// BFDSession is a BFD session between an external port of a VPC's router and a router of the physical network.
type BFDSession struct {
	// subnet is the external subnet.
	Subnet string `json:"subnet"`
	// peer is the address of the other router.
	Peer string `json:"peer"`
	// status is up, init, down or admin_down, as OVN reports it (ovn-nb(5), BFD). It is empty before OVN has begun the session.
	// +optional
	Status string `json:"status,omitempty"`
}

// Up reports whether the session is up.
func (s BFDSession) Up() bool { return s.Status == "up" }

// String returns the session for messages.
func (s BFDSession) String() string { return s.Peer + " in subnet " + s.Subnet }

// BFDPortStatus is the observed state of the BFD port.
type BFDPortStatus struct {
	// +optional
	Name string `json:"name,omitempty"`
	// +optional
	IP string `json:"ip,omitempty"`
	// nodes that may host the port, in order of preference.
	// +optional
	Nodes []string `json:"nodes,omitempty"`
}

// Vpc is an isolated routing domain: one logical router.
// +kubebuilder:validation:XValidation:rule="self.metadata.name != 'ovn-cluster' || !has(self.spec) || !has(self.spec.clusterAccess) || self.spec.clusterAccess != 'None'",message="clusterAccess: the default VPC is where Services and nodes are, and cannot be kept apart from them"
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=vpcs,singular=vpc,shortName=vpc,categories=kiln
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="EnableExternal",type=boolean,priority=1,JSONPath=`.status.enableExternal`
// +kubebuilder:printcolumn:name="EnableBfd",type=boolean,priority=1,JSONPath=`.status.enableBfd`
// +kubebuilder:printcolumn:name="Standby",type=boolean,priority=1,JSONPath=`.status.standby`
// +kubebuilder:printcolumn:name="Subnets",type=string,JSONPath=`.status.subnets`
// +kubebuilder:printcolumn:name="ExtraExternalSubnets",type=string,priority=1,JSONPath=`.status.extraExternalSubnets`
// +kubebuilder:printcolumn:name="Namespaces",type=string,JSONPath=`.spec.namespaces`
// +kubebuilder:printcolumn:name="DefaultSubnet",type=string,priority=1,JSONPath=`.status.defaultLogicalSwitch`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type Vpc struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec VpcSpec `json:"spec,omitempty"`
	// +optional
	Status VpcStatus `json:"status,omitempty"`
}

// VpcList is a list of Vpcs.
// +kubebuilder:object:root=true
type VpcList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Vpc `json:"items"`
}

// ExternalSubnets returns the subnets in which a spec requests ports of the router, in order and without duplicates: extraExternalSubnets or, if there are none,
// the default external subnet.
func (s *VpcSpec) ExternalSubnets() []string {
	var subnets []string
	for _, name := range s.ExtraExternalSubnets {
		if name != "" && !slices.Contains(subnets, name) {
			subnets = append(subnets, name)
		}
	}
	if len(subnets) == 0 && s.EnableExternal {
		return []string{DefaultExternalSubnet}
	}
	return subnets
}
