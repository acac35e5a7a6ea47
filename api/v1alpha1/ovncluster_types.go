// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// OVNClusterName is the only name an OVNCluster may have: a cluster has one network.
const OVNClusterName = "default"

// OVNClusterSpec defines the deployment. `spec: {}` is complete for a cluster whose nodes have the openvswitch kernel module.
// +kubebuilder:validation:XValidation:rule="!has(self.services) || !has(self.services.nodeAccess) || self.services.nodeAccess != 'Kiln' || has(self.apiServer)",message="services.nodeAccess Kiln needs apiServer: the agents cannot reach the API server through the ClusterIP that they are to make work"
type OVNClusterSpec struct {
	// image of every component. When empty, the image of the operator.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image,omitempty"`

	// imagePullPolicy of all pods. When it is not set, IfNotPresent. With Always, no pod restarts while the registry is unreachable.
	// +optional
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`

	// imagePullSecrets are names of Secrets in the namespace of the operator (kube-system) with which nodes pull the image of every component.
	// The operator's own Deployment is not included.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(s, has(s.name) && s.name != '')",message="each imagePullSecret has a name"
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`

	// apiServer is the address at which components on the host network reach the API server. When it is empty they use the address that the
	// kubelet provides: the ClusterIP of the Service `kubernetes`, which requires kube-proxy.
	// +optional
	APIServer *APIServer `json:"apiServer,omitempty"`

	// deletionPolicy applies when the OVNCluster is deleted. Retain keeps the database files on their nodes and the Secrets of the CAs; a
	// recreated OVNCluster uses them again. Delete deletes them, including backups. In both cases everything else that Kiln installed on
	// nodes is removed.
	// +optional
	// +kubebuilder:default=Retain
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`

	// +optional
	// +kubebuilder:default={}
	Certificates Certificates `json:"certificates,omitempty"`

	// +optional
	// +kubebuilder:default={}
	Network Network `json:"network,omitempty"`

	// tenancy defines the permissions of namespaces that apply when an object does not specify them.
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
	Policies Policies `json:"policies,omitempty"`

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
	Pinger Pinger `json:"pinger,omitempty"`

	// speaker announces pods, subnets, Services, EgressAddresses and OvnEips to BGP routers. By default there is none.
	// +optional
	Speaker *Speaker `json:"speaker,omitempty"`

	// +optional
	// +kubebuilder:default={}
	Upgrade Upgrade `json:"upgrade,omitempty"`

	// +optional
	// +kubebuilder:default={}
	Logging Logging `json:"logging,omitempty"`

	// +optional
	// +kubebuilder:default={}
	Monitoring Monitoring `json:"monitoring,omitempty"`

	// +optional
	// +kubebuilder:default={}
	Debug Debug `json:"debug,omitempty"`
}

// DeletionPolicy defines whether data is retained when the OVNCluster is deleted.
// +kubebuilder:validation:Enum=Retain;Delete
type DeletionPolicy string

// Values of DeletionPolicy.
const (
	DeletionRetain DeletionPolicy = "Retain"
	DeletionDelete DeletionPolicy = "Delete"
)

// Datapath defines the component that forwards packets on a node.
// +kubebuilder:validation:Enum=Kernel;Userspace
type Datapath string

// Values of Datapath.
const (
	DatapathKernel    Datapath = "Kernel"
	DatapathUserspace Datapath = "Userspace"
)

// Nodes defines how every node forwards packets.
// +kubebuilder:validation:XValidation:rule="!has(self.datapath) || self.datapath != 'Userspace' || has(self.tunnelInterface) && self.tunnelInterface.size() > 0",message="tunnelInterface is required with datapath Userspace"
type Nodes struct {
	// datapath is Kernel (the kernel module openvswitch) or Userspace (ovs-vswitchd, for nodes without the module). It cannot change once
	// Kiln is installed.
	// +optional
	// +kubebuilder:default=Kernel
	Datapath Datapath `json:"datapath,omitempty"`
	// tunnelInterface is the interface for tunnels. Its first address is the encapsulation address. By default the interface with the
	// InternalIP of the node. With datapath Userspace the bridge br-phy takes over the interface and its address; the node must reach the
	// API server through another interface.
	// +optional
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^[^/\s]+$')`,message="must be the name of an interface, without spaces and /"
	// +kubebuilder:validation:MaxLength=15
	TunnelInterface string `json:"tunnelInterface,omitempty"`
	// openVSwitchDirectory is the directory on nodes for the database of Open vSwitch and the node's key and certificate. It cannot change
	// on an installed cluster.
	// +optional
	// +kubebuilder:default=/etc/openvswitch
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^/[A-Za-z0-9._/-]+$')`,message="must be an absolute path of letters, digits, dots, hyphens and underscores, such as /var/lib/ovn"
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.split('/').exists(p, p == '..')",message="must not contain the element .."
	OpenVSwitchDirectory string `json:"openVSwitchDirectory,omitempty"`
}

// AnnotationAllowRemoval with the value "true" allows the deletion of the OVNCluster, of the default Vpc and Subnets, and of the resource definitions.
// ValidatingAdmissionPolicies in config/admission and of the operator deny it otherwise.
const AnnotationAllowRemoval = "kubeovn.io/allow-removal"

// NodeConditionKubeProxy is the condition of a node that is True while rules of kube-proxy conflict with the rules of the agent: both
// translate the same packets. Agents remove the condition when kube-proxy serves Services (nodeAccess KubeProxy).
const NodeConditionKubeProxy corev1.NodeConditionType = "KubeProxyRulesPresent"

// PodConditionNorthbound is a condition on the pod of the leading kube-ovn-controller. It is False when the northbound database commits no
// transactions or rejects the rows of some objects. The operator reports it in the condition Degraded.
const PodConditionNorthbound corev1.PodConditionType = "kubeovn.io/NorthboundWritten"

// Central defines the northbound and southbound databases and ovn-northd.
type Central struct {
	Placement `json:",inline"`
	// replicas of each database: members of its Raft cluster, each on its own node. 3 tolerate the loss of one member, 5 of two. It can
	// change at any time; members join and leave one at a time. When it is not set: 3 if three or more nodes can run a member, otherwise 1.
	// Members then join when nodes are added, and none leaves when nodes are lost: only a lower number removes members.
	// status.replicas.central has the effective number.
	// +optional
	// +kubebuilder:validation:Enum=1;3;5
	Replicas int32 `json:"replicas,omitempty"`
	// northdReplicas is the number of ovn-northd pods. One is active, the others stand by. When it is not set: 2 if two or more nodes can run
	// ovn-northd, otherwise 1. status.replicas.northd has the effective number.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=5
	NorthdReplicas int32 `json:"northdReplicas,omitempty"`
	// northbound defines the members of the northbound database.
	// +optional
	Northbound Workload `json:"northbound,omitempty"`
	// southbound defines the members of the southbound database. It is the larger database: every node reads it.
	// +optional
	Southbound Workload `json:"southbound,omitempty"`
	// northd defines the ovn-northd pods.
	// +optional
	Northd Workload `json:"northd,omitempty"`
	// dataDirectory is the directory of the database files on nodes. When it changes, members restart one at a time and move their files
	// (status.dataDirectories).
	// +optional
	// +kubebuilder:default=/etc/origin/ovn
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^/[A-Za-z0-9._/-]+$')`,message="must be an absolute path of letters, digits, dots, hyphens and underscores, such as /var/lib/ovn"
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.split('/').exists(p, p == '..')",message="must not contain the element .."
	DataDirectory string `json:"dataDirectory,omitempty"`
	// backup defines backups of the northbound database. Every member writes its own on its node.
	// +optional
	// +kubebuilder:default={}
	Backup Backup `json:"backup,omitempty"`
	// recovery recreates databases once, after the permanent loss of most of their members.
	// +optional
	Recovery *Recovery `json:"recovery,omitempty"`
	// portAccess is Limited or Open. Limited installs nftables rules on the nodes of the databases: Raft ports accept connections only from
	// members, the ports for northd and kube-ovn-controller only from nodes where these may run. Members must connect from the InternalIP
	// of their node. A source has at most 20 new connections per second. All nodes reject connections of pods to the databases. Open installs
	// no rules; use your own firewall.
	// +optional
	// +kubebuilder:default=Limited
	PortAccess PortAccess `json:"portAccess,omitempty"`
	// logLevel is the verbosity of the processes that supervise the databases and ovn-northd, and of ovn-central-backups; 0 is info, 1 adds
	// decisions. They apply a change while they run.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10
	LogLevel int32 `json:"logLevel,omitempty"`
}

// PortAccess defines which addresses may connect to the ports of the databases.
// +kubebuilder:validation:Enum=Limited;Open
type PortAccess string

// Values of PortAccess.
const (
	PortAccessLimited PortAccess = "Limited"
	PortAccessOpen    PortAccess = "Open"
)

// Controller defines kube-ovn-controller.
type Controller struct {
	Placement `json:",inline"`
	// replicas of kube-ovn-controller. One is the leader, the others stand by with warm caches. When it is not set: 2 if two or more nodes
	// can run kube-ovn-controller, otherwise 1. status.replicas.controller has the effective number.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=5
	Replicas int32 `json:"replicas,omitempty"`
	// logLevel is the verbosity of kube-ovn-controller; 0 is info, 1 adds decisions. It applies a change while it runs.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10
	LogLevel int32 `json:"logLevel,omitempty"`
}

// Agent defines kube-ovn-cni and the daemons next to it on every node.
type Agent struct {
	// resources of each container for which no other field sets resources.
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`
	// cni defines the pods kube-ovn-cni.
	// +optional
	CNI Workload `json:"cni,omitempty"`
	// openVSwitch defines the pods ovs-ovn, which run Open vSwitch and ovn-controller.
	// +optional
	OpenVSwitch Workload `json:"openVSwitch,omitempty"`
	// cniBinDirectory is the directory of CNI plugins that the container runtime on nodes uses.
	// +optional
	// +kubebuilder:default=/opt/cni/bin
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^/[A-Za-z0-9._/-]+$')`,message="must be an absolute path of letters, digits, dots, hyphens and underscores, such as /var/lib/ovn"
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.split('/').exists(p, p == '..')",message="must not contain the element .."
	CNIBinDirectory string `json:"cniBinDirectory,omitempty"`
	// cniConfDirectory is the directory of CNI configuration that the container runtime on nodes reads.
	// +optional
	// +kubebuilder:default=/etc/cni/net.d
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^/[A-Za-z0-9._/-]+$')`,message="must be an absolute path of letters, digits, dots, hyphens and underscores, such as /var/lib/ovn"
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.split('/').exists(p, p == '..')",message="must not contain the element .."
	CNIConfDirectory string `json:"cniConfDirectory,omitempty"`
	// cniConfPriority starts the name of the CNI configuration file: `01` makes it `01-kube-ovn.conflist`. The container runtime uses the file
	// that is the first in lexical order. A change renames the file on each node.
	// +optional
	// +kubebuilder:default="01"
	// +kubebuilder:validation:MaxLength=2
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^[0-9]{2}$')`,message="must be two digits, such as 01"
	CNIConfPriority string `json:"cniConfPriority,omitempty"`
	// toolingDirectory is a directory of nodes, such as /usr/local/bin, in which each agent installs the plugin kubectl-ko, and kubectl_complete-ko
	// for completion in the shell. They replace files with these names. By default, or if it is empty, nodes have no plugin. The kubelet creates a
	// missing directory; if it cannot, the pod kube-ovn-cni of the node does not start. If only the installation fails, the node gets the event ToolNotInstalled,
	// and pods are served. After a change, files in the old directory stay, and a removal of Kiln does not delete them.
	// +optional
	// +kubebuilder:validation:XValidation:rule=`self == '' || self.matches(r'^/[A-Za-z0-9._/-]+$')`,message="must be an absolute path of letters, digits, dots, hyphens and underscores, such as /usr/local/bin"
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.split('/').exists(p, p == '..')",message="must not contain the element .."
	ToolingDirectory string `json:"toolingDirectory,omitempty"`
	// mirror selects the pods whose packets each node copies to its interface mirror0. Selected: the pods with the annotation
	// ovn.kubernetes.io/mirror: "true". All: every port of the integration bridge; the annotation then has no effect. None: no pod; nodes
	// have no mirror0, and pods with the annotation get an event. Agents apply a change while they run.
	// +optional
	// +kubebuilder:default=Selected
	Mirror MirrorMode `json:"mirror,omitempty"`
	// logLevel is the verbosity of kube-ovn-cni and of the process that supervises Open vSwitch; 0 is info, 1 adds decisions. They apply a
	// change while they run.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10
	LogLevel int32 `json:"logLevel,omitempty"`
}

// MirrorMode selects the pods whose packets nodes copy to mirror0.
// +kubebuilder:validation:Enum=None;Selected;All
type MirrorMode string

// Values of MirrorMode.
const (
	MirrorNone     MirrorMode = "None"
	MirrorSelected MirrorMode = "Selected"
	MirrorAll      MirrorMode = "All"
)

// OVNCluster is the one resource that installs and operates OVN as the network of the cluster. The rules with oldSelf refuse changes that
// would break an installed cluster. They need a status that shows that the value is in use: until then a wrong value can be corrected.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=ovnc,categories=kiln
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Available",type=string,JSONPath=`.status.conditions[?(@.type=="Available")].status`
// +kubebuilder:printcolumn:name="Progressing",type=string,JSONPath=`.status.conditions[?(@.type=="Progressing")].status`
// +kubebuilder:printcolumn:name="Degraded",type=string,JSONPath=`.status.conditions[?(@.type=="Degraded")].status`
// +kubebuilder:printcolumn:name="NB leader",type=string,priority=1,JSONPath=`.status.northbound.leader`
// +kubebuilder:printcolumn:name="SB leader",type=string,priority=1,JSONPath=`.status.southbound.leader`
// +kubebuilder:printcolumn:name="Versions",type=string,priority=1,JSONPath=`.status.versions`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name == 'default'",message="an OVNCluster must be named default: a cluster has one network",messageExpression=`'an OVNCluster must be named default, and not ' + self.metadata.name + ': a cluster has one network'`
// +kubebuilder:validation:XValidation:fieldPath=".spec.network.podCIDRs",rule="!has(oldSelf.status) || !has(oldSelf.status.podCIDRs) || self.spec.network == oldSelf.spec.network || self.spec.network.podCIDRs.size() >= oldSelf.status.podCIDRs.size() && cidr(self.spec.network.podCIDRs[0]).containsCIDR(oldSelf.status.podCIDRs[0]) && (oldSelf.status.podCIDRs.size() < 2 || cidr(self.spec.network.podCIDRs[1]).containsCIDR(oldSelf.status.podCIDRs[1]))",messageExpression="'cannot change to ' + self.spec.network.podCIDRs.join(', ') + ' while pods have addresses of ' + oldSelf.status.podCIDRs.join(', ') + ': set CIDRs that contain these, in the same order; a CIDR of a second family may follow'"
// +kubebuilder:validation:XValidation:fieldPath=".spec.network.joinCIDRs",rule="!has(oldSelf.status) || !has(oldSelf.status.joinCIDRs) || self.spec.network == oldSelf.spec.network || oldSelf.status.joinCIDRs.all(o, (has(self.spec.network.joinCIDRs) && self.spec.network.joinCIDRs.size() > 0 ? self.spec.network.joinCIDRs : self.spec.network.podCIDRs.map(c, cidr(c).ip().family() == 4 ? '100.64.0.0/16' : 'fd00:100:64::/112')).exists(n, cidr(n) == cidr(o)))",messageExpression="'cannot change to ' + (has(self.spec.network.joinCIDRs) && self.spec.network.joinCIDRs.size() > 0 ? self.spec.network.joinCIDRs.join(', ') : 'the default') + ' while nodes have addresses of ' + oldSelf.status.joinCIDRs.join(', ') + ': keep these; a CIDR of a second family may follow'"
// +kubebuilder:validation:XValidation:fieldPath=".spec.nodes.datapath",rule="!has(oldSelf.status) || !has(oldSelf.status.northbound) || !has(oldSelf.status.northbound.clusterID) || self.spec.nodes.datapath == oldSelf.spec.nodes.datapath",messageExpression="'cannot change from ' + oldSelf.spec.nodes.datapath + ' to ' + self.spec.nodes.datapath + ' on an installed cluster: running pods would lose their network; remove the OVNCluster and create it again'"
// +kubebuilder:validation:XValidation:fieldPath=".spec.central.dataDirectory",rule="!has(oldSelf.status) || !has(oldSelf.status.dataDirectories) || oldSelf.status.dataDirectories.size() < 2 || self.spec.central.dataDirectory in oldSelf.status.dataDirectories",messageExpression="'cannot change to ' + self.spec.central.dataDirectory + ' while members move their files between ' + oldSelf.status.dataDirectories.join(' and ') + ': set one of these, and wait until status.dataDirectories has only that one'"
// +kubebuilder:validation:XValidation:fieldPath=".spec.nodes.openVSwitchDirectory",rule="!has(oldSelf.status) || !has(oldSelf.status.northbound) || !has(oldSelf.status.northbound.clusterID) || self.spec.nodes.openVSwitchDirectory == oldSelf.spec.nodes.openVSwitchDirectory",messageExpression="'cannot change from ' + oldSelf.spec.nodes.openVSwitchDirectory + ' to ' + self.spec.nodes.openVSwitchDirectory + ' on an installed cluster: nodes would lose the database of Open vSwitch and their certificates; remove the OVNCluster and create it again'"
// +kubebuilder:validation:XValidation:fieldPath=".spec.network.podGateways",rule="!has(oldSelf.status) || !has(oldSelf.status.podCIDRs) || (has(self.spec.network.podGateways) ? self.spec.network.podGateways : []) == (has(oldSelf.spec.network.podGateways) ? oldSelf.spec.network.podGateways : [])",message="cannot change after the installation: change gateway of the Subnet ovn-default instead"
// +kubebuilder:validation:XValidation:fieldPath=".spec.network.podVlan",rule=`!has(oldSelf.status) || !has(oldSelf.status.podCIDRs) || (has(self.spec.network.podVlan) ? self.spec.network.podVlan : "") == (has(oldSelf.spec.network.podVlan) ? oldSelf.spec.network.podVlan : "")`,message="cannot change after the installation: it applies when the Subnet ovn-default is created"
// +kubebuilder:validation:XValidation:fieldPath=".spec.network.excludeIPs",rule="!has(oldSelf.status) || !has(oldSelf.status.podCIDRs) || (has(self.spec.network.excludeIPs) ? self.spec.network.excludeIPs : []) == (has(oldSelf.spec.network.excludeIPs) ? oldSelf.spec.network.excludeIPs : [])",message="cannot change after the installation: change excludeIps of the Subnet ovn-default instead"
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
