// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Condition types of an OVNCluster.
const (
	// ConditionAvailable: every component serves; pods get addresses and talk.
	ConditionAvailable = "Available"
	// ConditionProgressing: the operator is changing something, or waits for it.
	ConditionProgressing = "Progressing"
	// ConditionDegraded: something needs attention; the message says what to do.
	ConditionDegraded = "Degraded"
	// ConditionProtected: the admission policies are applied, without which RBAC alone limits tenants and stolen tokens.
	ConditionProtected = "Protected"
)

// ComponentStatus is one row per component.
type ComponentStatus struct {
	// name of the workload: `ovn-central-nb`, `ovs-ovn`, …
	Name string `json:"name"`
	// +optional
	Desired int32 `json:"desired"`
	// +optional
	Ready int32 `json:"ready"`
	// updated pods: of the newest image and settings.
	// +optional
	Updated int32 `json:"updated"`
	// image the component runs, or is brought to.
	// +optional
	Image string `json:"image,omitempty"`
	// versions that run, as the pods that are ready tell them themselves: more than one while an upgrade is under way.
	// +optional
	// +listType=atomic
	Versions []ComponentVersion `json:"versions,omitempty"`
	// message says what the component waits for.
	// +optional
	Message string `json:"message,omitempty"`
}

// ComponentVersion is what some pods of a component run.
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
	// pods that run these versions.
	Pods int32 `json:"pods"`
	// nodes of these pods, the first ten.
	// +optional
	// +listType=atomic
	Nodes []string `json:"nodes,omitempty"`
}

// DatabaseMember is one member of a Raft cluster, by its node.
type DatabaseMember struct {
	// node is the member's identity.
	Node string `json:"node"`
	// address of the node, without port: an IP address.
	Address string `json:"address"`
	// serverID as Raft knows it; empty until the member has joined.
	// +optional
	ServerID string `json:"serverID,omitempty"`
	// since is when the member was last told to join anew. It sets aside a file of its node that is older.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// role is leader, follower or candidate.
	// +optional
	Role string `json:"role,omitempty"`
}

// DatabaseStatus is one OVN database, as its members report it.
type DatabaseStatus struct {
	// bootstrapNode is recorded before the database exists: the one node that may create the cluster.
	// +optional
	BootstrapNode string `json:"bootstrapNode,omitempty"`
	// clusterID is recorded once it was created; from then on members only join this one.
	// +optional
	ClusterID string `json:"clusterID,omitempty"`
	// since is when the cluster was made anew by a recovery. Older files of members are of another cluster.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// recovery is the last one.
	// +optional
	Recovery *RecoveryStatus `json:"recovery,omitempty"`
	// lastBackup is the newest one that members tell of.
	// +optional
	LastBackup *BackupStatus `json:"lastBackup,omitempty"`
	// lastBackupOnClaim is the newest one on the PersistentVolumeClaim of spec.central.backup.
	// +optional
	LastBackupOnClaim *BackupStatus `json:"lastBackupOnClaim,omitempty"`
	// requestedBackup is the last one that was asked for, once every member that serves has made it, and the claim has it if there is one.
	// +optional
	RequestedBackup *BackupStatus `json:"requestedBackup,omitempty"`
	// leader is the node of the leader.
	// +optional
	Leader string `json:"leader,omitempty"`
	// +optional
	Term int64 `json:"term,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=node
	Members []DatabaseMember `json:"members,omitempty"`
}

// OVNClusterStatus is what the operator sees.
type OVNClusterStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// strictSince is the time when the defaults of spec.tenancy took effect. Before that, the operator wrote into each object that earlier
	// versions had served the permissions that these versions gave it.
	// +optional
	StrictSince *metav1.Time `json:"strictSince,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=name
	Components []ComponentStatus `json:"components,omitempty"`
	// versions that run, of all components in one line.
	// +optional
	Versions string `json:"versions,omitempty"`
	// clients are the addresses of the nodes where northd and kube-ovn-controller may run, and of databases: those for which the ports of the
	// databases are, beside the one for nodes.
	// +optional
	// +listType=atomic
	Clients []string `json:"clients,omitempty"`
	// northbound database. Clients take its addresses from here.
	// +optional
	Northbound DatabaseStatus `json:"northbound,omitempty"`
	// southbound database. Clients take its addresses from here.
	// +optional
	Southbound DatabaseStatus `json:"southbound,omitempty"`
	// +optional
	Upgrade UpgradeStatus `json:"upgrade,omitempty"`
}
