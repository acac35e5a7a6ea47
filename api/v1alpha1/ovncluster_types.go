// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// OVNClusterName is the only name an OVNCluster may have: a cluster has one network.
const OVNClusterName = "default"

// OVNClusterSpec is the deployment that the operator makes so. `spec: {}` is complete on a cluster whose nodes have the
// openvswitch kernel module.
// +kubebuilder:validation:XValidation:rule="!has(self.services) || !has(self.services.nodeAccess) || self.services.nodeAccess != 'Kiln' || has(self.apiServer)",message="services.nodeAccess Kiln needs apiServer: the agents cannot reach the API server through the ClusterIP that they are to make work"
type OVNClusterSpec struct {
	// image of every component. The operator's own image when empty.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image,omitempty"`

	// apiServer is where components on the host network reach the API server. When it is empty they use the address that the
	// kubelet gives them, which is the ClusterIP of the service `kubernetes` and needs a kube-proxy.
	// +optional
	APIServer *APIServer `json:"apiServer,omitempty"`

	// deletionPolicy is what becomes of data when the OVNCluster is deleted: Retain keeps the databases' files on their nodes and the
	// authorities' Secrets, and an OVNCluster made again goes on with them; Delete deletes them, backups among them. Nodes lose
	// everything else of Kiln in either case.
	// +optional
	// +kubebuilder:default=Retain
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`

	// +optional
	// +kubebuilder:default={}
	Certificates Certificates `json:"certificates,omitempty"`

	// +optional
	// +kubebuilder:default={}
	Network Network `json:"network,omitempty"`

	// tenancy is what namespaces may do where no object says otherwise.
	// +optional
	// +kubebuilder:default={}
	Tenancy Tenancy `json:"tenancy,omitempty"`

	// +optional
	// +kubebuilder:default={}
	Nodes Nodes `json:"nodes,omitempty"`

	// +optional
	// +kubebuilder:default={}
	Services Services `json:"services,omitempty"`

	// +optional
	// +kubebuilder:default={}
	Central Central `json:"central,omitempty"`

	// +optional
	// +kubebuilder:default={}
	Controller Controller `json:"controller,omitempty"`

	// +optional
	// +kubebuilder:default={}
	Agent Agent `json:"agent,omitempty"`

	// +optional
	// +kubebuilder:default={}
	Upgrade Upgrade `json:"upgrade,omitempty"`
}

// DeletionPolicy is what becomes of data when the OVNCluster is deleted.
// +kubebuilder:validation:Enum=Retain;Delete
type DeletionPolicy string

// Deletion policies.
const (
	DeletionRetain DeletionPolicy = "Retain"
	DeletionDelete DeletionPolicy = "Delete"
)

// APIServer is an address of the API server that does not depend on the cluster's network.
type APIServer struct {
	// host is an IP address or a name that nodes can resolve.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Host string `json:"host"`
	// +optional
	// +kubebuilder:default=6443
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`
}

// TunnelType is the encapsulation between nodes (ovn-controller(8), ovn-encap-type).
// +kubebuilder:validation:Enum=geneve;vxlan
type TunnelType string

// Tunnel types.
const (
	TunnelGeneve TunnelType = "geneve"
	TunnelVXLAN  TunnelType = "vxlan"
)

// Network holds the addresses of the cluster. Each list has one CIDR per family, at most two, in the order of preference.
// +kubebuilder:validation:XValidation:rule="!has(self.joinCIDRs) || self.joinCIDRs.size() == 0 || self.joinCIDRs.size() == self.podCIDRs.size() && self.joinCIDRs.all(j, self.podCIDRs.exists(p, cidr(j).ip().family() == cidr(p).ip().family()))",message="joinCIDRs must have the families of podCIDRs"
// +kubebuilder:validation:XValidation:rule="!has(self.podCIDRs) || !has(self.serviceCIDRs) || !self.podCIDRs.exists(p, self.serviceCIDRs.exists(s, cidr(p).containsCIDR(s) || cidr(s).containsCIDR(p)))",message="podCIDRs and serviceCIDRs must not overlap"
// +kubebuilder:validation:XValidation:rule="!has(self.joinCIDRs) || !self.joinCIDRs.exists(j, (self.podCIDRs + self.serviceCIDRs).exists(c, cidr(j).containsCIDR(c) || cidr(c).containsCIDR(j)))",message="joinCIDRs must overlap neither with podCIDRs nor with serviceCIDRs"
type Network struct {
	// podCIDRs of the subnet `ovn-default`.
	// +optional
	// +kubebuilder:default={"10.16.0.0/16"}
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=43
	// +listType=atomic
	// +kubebuilder:validation:XValidation:rule="self.all(c, isCIDR(c) && cidr(c) == cidr(c).masked())",message="must be CIDRs without bits after the prefix length"
	// +kubebuilder:validation:XValidation:rule="self.size() < 2 || cidr(self[0]).ip().family() != cidr(self[1]).ip().family()",message="must have at most one CIDR of each family"
	PodCIDRs []string `json:"podCIDRs,omitempty"`
	// joinCIDRs of the subnet `join`, which connects the nodes themselves. Its families must be those of podCIDRs; when left
	// out, 100.64.0.0/16 and fd00:100:64::/112 by family.
	// +optional
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=43
	// +listType=atomic
	// +kubebuilder:validation:XValidation:rule="self.all(c, isCIDR(c) && cidr(c) == cidr(c).masked())",message="must be CIDRs without bits after the prefix length"
	// +kubebuilder:validation:XValidation:rule="self.size() < 2 || cidr(self[0]).ip().family() != cidr(self[1]).ip().family()",message="must have at most one CIDR of each family"
	JoinCIDRs []string `json:"joinCIDRs,omitempty"`
	// serviceCIDRs are the API server's --service-cluster-ip-range.
	// +optional
	// +kubebuilder:default={"10.96.0.0/12"}
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=43
	// +listType=atomic
	// +kubebuilder:validation:XValidation:rule="self.all(c, isCIDR(c) && cidr(c) == cidr(c).masked())",message="must be CIDRs without bits after the prefix length"
	// +kubebuilder:validation:XValidation:rule="self.size() < 2 || cidr(self[0]).ip().family() != cidr(self[1]).ip().family()",message="must have at most one CIDR of each family"
	ServiceCIDRs []string `json:"serviceCIDRs,omitempty"`
	// +optional
	// +kubebuilder:default=geneve
	TunnelType TunnelType `json:"tunnelType,omitempty"`
	// mtu of pods, in bytes. By default that of the tunnel interface less the encapsulation (100 for geneve, 50 for vxlan; 20
	// more over IPv6).
	// +optional
	// +kubebuilder:validation:Minimum=576
	// +kubebuilder:validation:Maximum=65535
	MTU int32 `json:"mtu,omitempty"`
}

// Membership defines which namespaces may use custom VPCs, private subnets and IPPools that have namespaces.
// +kubebuilder:validation:Enum=Granted;Open
type Membership string

// Values of Membership.
const (
	MembershipGranted Membership = "Granted"
	MembershipOpen    Membership = "Open"
)

// Tenancy defines how the users of a namespace may use network resources. The defaults are strict. At an upgrade the operator writes the
// previous permissions into each object that an older version of Kiln has served.
type Tenancy struct {
	// membership Granted: a pod or Service may name those custom VPCs, private subnets and IPPools with namespaces only that list its namespace.
	// Open: it may name any of them, as with Kube-OVN.
	// +optional
	// +kubebuilder:default=Granted
	Membership Membership `json:"membership,omitempty"`
	// clusterAccess of custom VPCs whose clusterAccess is empty.
	// +optional
	// +kubebuilder:default=None
	ClusterAccess kubeovnv1.ClusterAccess `json:"clusterAccess,omitempty"`
	// portSecurity of subnets whose portSecurity is empty.
	// +optional
	// +kubebuilder:default=Enforced
	PortSecurity kubeovnv1.PortSecurity `json:"portSecurity,omitempty"`
	// externalIPs Granted: a user adds externalIPs to Services only with the verb use on externalips.kubeovn.io in the namespace, which cluster
	// administrators have. Open: everybody who may write Services.
	// +optional
	// +kubebuilder:default=Granted
	ExternalIPs ExternalIPs `json:"externalIPs,omitempty"`
}

// ExternalIPs is who may add externalIPs to Services.
// +kubebuilder:validation:Enum=Granted;Open
type ExternalIPs string

// Values of ExternalIPs.
const (
	ExternalIPsGranted ExternalIPs = "Granted"
	ExternalIPsOpen    ExternalIPs = "Open"
)

// Datapath is where Open vSwitch forwards packets.
// +kubebuilder:validation:Enum=Kernel;Userspace
type Datapath string

// Datapaths.
const (
	DatapathKernel    Datapath = "Kernel"
	DatapathUserspace Datapath = "Userspace"
)

// Nodes says how every node forwards.
// +kubebuilder:validation:XValidation:rule="!has(self.datapath) || self.datapath != 'Userspace' || has(self.tunnelInterface) && self.tunnelInterface.size() > 0",message="tunnelInterface is required with datapath Userspace"
type Nodes struct {
	// datapath is Kernel (the openvswitch module) or Userspace (ovs-vswitchd itself; for nodes without the module).
	// +optional
	// +kubebuilder:default=Kernel
	Datapath Datapath `json:"datapath,omitempty"`
	// tunnelInterface carries the tunnels: its first address is the encapsulation address. By default the interface of the node's
	// InternalIP. In Userspace it becomes a port of the bridge br-phy, which takes over its address, so it must not be the
	// interface that reaches the API server.
	// +optional
	// +kubebuilder:validation:Pattern=`^[^/\s]+$`
	// +kubebuilder:validation:MaxLength=15
	TunnelInterface string `json:"tunnelInterface,omitempty"`
}

// AnnotationAllowRemoval is "true" on an OVNCluster that may be deleted. A ValidatingAdmissionPolicy in config/rbac denies the deletion otherwise.
const AnnotationAllowRemoval = "kubeovn.io/allow-removal"

// NodeConditionKubeProxy is the condition of a node that is True while kube-proxy's rules are there beside the agent's: both translate the
// same packets. Agents that leave Services to kube-proxy take it away.
const NodeConditionKubeProxy corev1.NodeConditionType = "KubeProxyRulesPresent"

// PodConditionNorthbound is the condition of the pod of the kube-ovn-controller that leads: False when the northbound database commits nothing,
// or refuses the rows of some objects. The operator takes it over into Degraded.
const PodConditionNorthbound corev1.PodConditionType = "kubeovn.io/NorthboundWritten"

// NodeAccess is who makes Services reachable from nodes and from outside.
// +kubebuilder:validation:Enum=Kiln;KubeProxy
type NodeAccess string

// Ways to Services from nodes and from outside.
const (
	NodeAccessKiln      NodeAccess = "Kiln"
	NodeAccessKubeProxy NodeAccess = "KubeProxy"
)

// Services says how Services are served beside OVN, by whose load balancers pods reach them.
type Services struct {
	// nodeAccess is Kiln (the agents make ClusterIPs, external addresses and node ports work on nodes, and there must be no
	// kube-proxy) or KubeProxy (they stay out of its way).
	// +optional
	// +kubebuilder:default=KubeProxy
	NodeAccess NodeAccess `json:"nodeAccess,omitempty"`
}

// Placement is shared by components that are not on every node.
type Placement struct {
	// nodeSelector of the component's pods. By default control-plane nodes
	// (`node-role.kubernetes.io/control-plane`).
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`
}

// Central is the northbound and southbound databases and ovn-northd.
type Central struct {
	Placement `json:",inline"`
	// replicas of each database: members of its Raft cluster, each on a node of its own. 3 survive the loss of one, 5 of two. It can change at
	// any time; members come and go one after another.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Enum=1;3;5
	Replicas int32 `json:"replicas,omitempty"`
	// northdReplicas: one is active, the others stand by.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=5
	NorthdReplicas int32 `json:"northdReplicas,omitempty"`
	// dataDirectory on the nodes of the database files.
	// +optional
	// +kubebuilder:default=/etc/origin/ovn
	// +kubebuilder:validation:Pattern=`^/[A-Za-z0-9._/-]+$`
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.split('/').exists(p, p == '..')",message="must not contain the element .."
	DataDirectory string `json:"dataDirectory,omitempty"`
	// backup of the northbound database, which every member makes on its own node.
	// +optional
	// +kubebuilder:default={}
	Backup Backup `json:"backup,omitempty"`
	// recovery makes databases anew, once, after most of their members were lost for good.
	// +optional
	Recovery *Recovery `json:"recovery,omitempty"`
	// portAccess: Limited has the databases' nodes refuse, by nftables, whoever comes to the Raft ports from another address than a member's, or to
	// the ports of northd and kube-ovn-controller from a node that these do not run on. Members are to leave by their InternalIP for
	// that. Open leaves it to a firewall of yours.
	// +optional
	// +kubebuilder:default=Limited
	PortAccess PortAccess `json:"portAccess,omitempty"`
}

// PortAccess is who may reach ports of the databases.
// +kubebuilder:validation:Enum=Limited;Open
type PortAccess string

// Ways to the databases' ports.
const (
	PortAccessLimited PortAccess = "Limited"
	PortAccessOpen    PortAccess = "Open"
)

// Controller is kube-ovn-controller.
type Controller struct {
	Placement `json:",inline"`
	// replicas: one leads, the others stand by with warm caches.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=5
	Replicas int32 `json:"replicas,omitempty"`
	// logLevel is the verbosity of the log; 0 is info.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10
	LogLevel int32 `json:"logLevel,omitempty"`
}

// Agent is kube-ovn-cni and the daemons beside it on every node.
type Agent struct {
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`
	// cniBinDirectory of the container runtime on nodes.
	// +optional
	// +kubebuilder:default=/opt/cni/bin
	// +kubebuilder:validation:Pattern=`^/[A-Za-z0-9._/-]+$`
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.split('/').exists(p, p == '..')",message="must not contain the element .."
	CNIBinDirectory string `json:"cniBinDirectory,omitempty"`
	// cniConfDirectory of the container runtime on nodes.
	// +optional
	// +kubebuilder:default=/etc/cni/net.d
	// +kubebuilder:validation:Pattern=`^/[A-Za-z0-9._/-]+$`
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.split('/').exists(p, p == '..')",message="must not contain the element .."
	CNIConfDirectory string `json:"cniConfDirectory,omitempty"`
	// logLevel is the verbosity of the log; 0 is info.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10
	LogLevel int32 `json:"logLevel,omitempty"`
}

// OVNCluster is the one resource that installs and operates OVN as the network of the cluster.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=ovnc
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Available",type=string,JSONPath=`.status.conditions[?(@.type=="Available")].status`
// +kubebuilder:printcolumn:name="Progressing",type=string,JSONPath=`.status.conditions[?(@.type=="Progressing")].status`
// +kubebuilder:printcolumn:name="Degraded",type=string,JSONPath=`.status.conditions[?(@.type=="Degraded")].status`
// +kubebuilder:printcolumn:name="NB leader",type=string,priority=1,JSONPath=`.status.northbound.leader`
// +kubebuilder:printcolumn:name="SB leader",type=string,priority=1,JSONPath=`.status.southbound.leader`
// +kubebuilder:printcolumn:name="Versions",type=string,priority=1,JSONPath=`.status.versions`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Progressing")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name == 'default'",message="an OVNCluster must be named default: a cluster has one network"
type OVNCluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	// +kubebuilder:default={}
	Spec OVNClusterSpec `json:"spec,omitempty"`
	// +optional
	Status OVNClusterStatus `json:"status,omitempty"`
}

// OVNClusterList is a list of OVNClusters.
// +kubebuilder:object:root=true
type OVNClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []OVNCluster `json:"items"`
}
