// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Condition types of an OVNCluster.
const (
	// ConditionAvailable: every component is ready; pods get addresses and can communicate.
	ConditionAvailable = "Available"
	// ConditionProgressing: the operator is changing components or waits for a change to complete.
	ConditionProgressing = "Progressing"
	// ConditionDegraded: the cluster needs attention. The message says what to do.
	ConditionDegraded = "Degraded"
	// ConditionProtected: the admission policies are applied. Without them, only RBAC limits tenants and stolen tokens.
	ConditionProtected = "Protected"
	// ConditionPeersEstablished: every BGP session that a node reports is established. It exists while there is spec.speaker.
	ConditionPeersEstablished = "PeersEstablished"
)

// ComponentStatus is the state of one component.
type ComponentStatus struct {
	// name of the workload, for example `ovn-central-nb` or `ovs-ovn`.
	Name string `json:"name"`
	// +optional
	Desired int32 `json:"desired"`
	// +optional
	Ready int32 `json:"ready"`
	// updated is the number of pods with the current image and settings.
	// +optional
	Updated int32 `json:"updated"`
	// image that the component runs or is being upgraded to.
	// +optional
	Image string `json:"image,omitempty"`
	// versions that the ready pods report. There are several during an upgrade.
	// +optional
	// +listType=atomic
	Versions []ComponentVersion `json:"versions,omitempty"`
	// message describes the condition that the component waits for.
	// +optional
	Message string `json:"message,omitempty"`
}

// ComponentVersion is the versions of programs in some pods of a component.
type ComponentVersion struct {
	// kiln is the tag that the image was built with.
	// +optional
	Kiln string `json:"kiln,omitempty"`
	// ovn is the version of ovn-northd or ovn-controller.
	// +optional
	OVN string `json:"ovn,omitempty"`
	// openVSwitch is the version of ovs-vswitchd, or of a database's ovsdb-server.
	// +optional
	OpenVSwitch string `json:"openVSwitch,omitempty"`
	// pods is the number of pods that run these versions.
	Pods int32 `json:"pods"`
	// nodes of these pods, at most ten.
	// +optional
	// +listType=atomic
	Nodes []string `json:"nodes,omitempty"`
}

// DatabaseMember is one member of a Raft cluster. Each member runs on its own node.
type DatabaseMember struct {
	// node is the name of the node, which identifies the member.
	Node string `json:"node"`
	// address is the IP address of the node, without port.
	Address string `json:"address"`
	// serverID of the member in Raft. Empty until the member has joined.
	// +optional
	ServerID string `json:"serverID,omitempty"`
	// since is the time of the last request to join or rejoin the cluster. The member sets aside a database file that is older.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// role is leader, follower or candidate.
	// +optional
	Role string `json:"role,omitempty"`
}

// DatabaseStatus is the state of one OVN database, as reported by its members.
type DatabaseStatus struct {
	// bootstrapNode is the only node that may create the cluster. It is recorded before the database exists.
	// +optional
	BootstrapNode string `json:"bootstrapNode,omitempty"`
	// clusterID of the Raft cluster, recorded once it was created. Members join only this cluster.
	// +optional
	ClusterID string `json:"clusterID,omitempty"`
	// since is the time of the last recovery that recreated the cluster. Older database files belong to a previous cluster.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// recovery is the last recovery.
	// +optional
	Recovery *RecoveryStatus `json:"recovery,omitempty"`
	// lastBackup is the newest backup that members report.
	// +optional
	LastBackup *BackupStatus `json:"lastBackup,omitempty"`
	// lastBackupOnClaim is the newest backup on the PersistentVolumeClaim of spec.central.backup.
	// +optional
	LastBackupOnClaim *BackupStatus `json:"lastBackupOnClaim,omitempty"`
	// requestedBackup is the backup of the last completed spec.central.backup.request: every connected member has written it, and so has
	// the claim if there is one.
	// +optional
	RequestedBackup *BackupStatus `json:"requestedBackup,omitempty"`
	// leader is the node of the Raft leader.
	// +optional
	Leader string `json:"leader,omitempty"`
	// +optional
	Term int64 `json:"term,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=node
	Members []DatabaseMember `json:"members,omitempty"`
}

// EffectiveReplicas are the numbers of pods that the operator maintains. The operator derives numbers that the spec does not set from the
// nodes that match the component's nodeSelector.
type EffectiveReplicas struct {
	// central is the number of members of each database.
	// +optional
	Central int32 `json:"central,omitempty"`
	// northd is the number of ovn-northd pods.
	// +optional
	Northd int32 `json:"northd,omitempty"`
	// controller is the number of kube-ovn-controller pods.
	// +optional
	Controller int32 `json:"controller,omitempty"`
}

// OVNClusterStatus is the observed state of the deployment.
type OVNClusterStatus struct {
	// message is copied from one condition: Degraded if it is True, then Available if it is False, Protected if it is False, Progressing if it
	// is True, and otherwise Available.
	// +optional
	Message string `json:"message,omitempty"`
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// strictSince is the time when the defaults of spec.tenancy took effect. Before that, the operator wrote the permissions of Kube-OVN
	// into each object that it had served.
	// +optional
	StrictSince *metav1.Time `json:"strictSince,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=name
	Components []ComponentStatus `json:"components,omitempty"`
	// versions of the programs of the components, in one line. kube-ovn-monitor, which has the operator's image, does not count.
	// +optional
	Versions string `json:"versions,omitempty"`
	// podCIDRs are those of spec.network that the subnet `ovn-default` has. It grows before they are recorded; from then on podCIDRs must
	// contain them.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=43
	PodCIDRs []string `json:"podCIDRs,omitempty"`
	// joinCIDRs are those of spec.network, or the default ones, that the subnet `join` has.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=43
	JoinCIDRs []string `json:"joinCIDRs,omitempty"`
	// tunnelTypes are the encapsulations that nodes offer: spec.network.tunnelType and, while that changes, the previous one. Two nodes use
	// one that both offer.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2
	TunnelTypes []TunnelType `json:"tunnelTypes,omitempty"`
	// dataDirectories are the directories with database files on nodes: spec.central.dataDirectory and, while members move their files, the
	// previous one.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=1024
	DataDirectories []string `json:"dataDirectories,omitempty"`
	// externalGateways has the last valid settings of the ConfigMap ovn-external-gw-config, while it enables external gateways. Those of spec.network.externalGateways
	// precede them.
	// +optional
	ExternalGateways *ExternalGatewaysStatus `json:"externalGateways,omitempty"`
	// replicas are the effective numbers of members and pods: those of the spec, or those that the operator derives from the nodes.
	// +optional
	Replicas EffectiveReplicas `json:"replicas,omitempty"`
	// clients are the addresses of the nodes where northd and kube-ovn-controller may run, and of the databases. With portAccess Limited,
	// only these addresses may use the ports of the databases that are not for all nodes.
	// +optional
	// +listType=atomic
	Clients []string `json:"clients,omitempty"`
	// northbound is the state of the northbound database. Clients read its addresses from here.
	// +optional
	Northbound DatabaseStatus `json:"northbound,omitempty"`
	// southbound is the state of the southbound database. Clients read its addresses from here.
	// +optional
	Southbound DatabaseStatus `json:"southbound,omitempty"`
	// speaker is the state of the BGP sessions, if there is spec.speaker.
	// +optional
	Speaker *SpeakerStatus `json:"speaker,omitempty"`
	// +optional
	Upgrade UpgradeStatus `json:"upgrade,omitempty"`
}
