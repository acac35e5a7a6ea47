// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Backup defines when members write backups of the northbound database and how many they retain. Backups are files in the directory
// `backups` next to the database file. Optionally one more pod writes backups to a PersistentVolumeClaim.
type Backup struct {
	// interval between backups. 0s turns them off.
	// +optional
	// +kubebuilder:default="24h"
	// +kubebuilder:validation:XValidation:rule="duration(self) == duration('0s') || duration(self) >= duration('1m')",message="interval is 1m or longer, or 0s for none"
	Interval metav1.Duration `json:"interval,omitempty"`
	// keep is the number of newest backups that are retained, per member and on the claim.
	// +optional
	// +kubebuilder:default=7
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Keep int32 `json:"keep,omitempty"`
	// request requests one more backup, independent of interval. Its value is a new name, for example a date, which becomes part of the
	// file name. The backup is retained, besides the backups that keep counts, until the field changes.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^[a-z0-9]([a-z0-9-]*[a-z0-9])?$')`,message="must be lower-case letters, digits and hyphens, such as 2026-11-28"
	Request string `json:"request,omitempty"`
	// persistentVolumeClaim on which one more pod writes backups at the same times, from any member that serves. Members do not depend on
	// it: they still write their own backups on their nodes.
	// +optional
	PersistentVolumeClaim *BackupClaim `json:"persistentVolumeClaim,omitempty"`
	// resources of the pod that writes backups to persistentVolumeClaim.
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`
}

// BackupClaim is a PersistentVolumeClaim for backups.
type BackupClaim struct {
	// claimName is the name of the PersistentVolumeClaim, in the namespace of the operator. One pod mounts it, so that any access mode but
	// ReadOnlyMany works. It must be writable for the group 65532 and mountable on a node of spec.central.nodeSelector. It is never
	// deleted.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')`,message="must be the name of a PersistentVolumeClaim"
	ClaimName string `json:"claimName"`
}

// Recovery creates a new cluster with one member on one node; the other members then join it and set their database files aside. A recovery
// runs once: the status records it by its id, and only a new id starts another one.
// +kubebuilder:validation:XValidation:rule="!has(self.backup) || self.northbound == 'Backup'",message="backup names a file for northbound: Backup"
// +kubebuilder:validation:XValidation:rule="self.northbound != 'None' || self.southbound != 'None'",message="northbound and southbound are both None: nothing would be recovered"
type Recovery struct {
	// id of this recovery: a name that no earlier recovery had, for example a date.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	ID string `json:"id"`
	// northbound is the source of the northbound database: Member (the database file of the member with the longest log), Backup (the
	// newest backup, or the one in backup), Rebuild (an empty database, which kube-ovn-controller fills from the Kubernetes API), or None
	// (no recovery of this database).
	// +optional
	// +kubebuilder:default=Member
	// +kubebuilder:validation:Enum=Member;Backup;Rebuild;None
	Northbound RecoverySource `json:"northbound,omitempty"`
	// southbound is the source of the southbound database: Member (the database file of the member with the longest log), Rebuild (an empty
	// database, which ovn-northd fills from the northbound database; traffic between nodes pauses until the nodes have claimed their ports
	// again), or None (no recovery of this database).
	// +optional
	// +kubebuilder:default=Member
	// +kubebuilder:validation:Enum=Member;Rebuild;None
	Southbound RecoverySource `json:"southbound,omitempty"`
	// node of the new member. By default the node whose member has the longest log, or the node with the newest backup.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node,omitempty"`
	// backup is the file name of a backup. By default the newest backup.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^[A-Za-z0-9._-]+$')`,message="must be the name of a file, without directories"
	Backup string `json:"backup,omitempty"`
	// when is QuorumLost (leave a database alone that has a leader or can still elect one) or Always (replace also a database that serves).
	// +optional
	// +kubebuilder:default=QuorumLost
	// +kubebuilder:validation:Enum=QuorumLost;Always
	When RecoveryWhen `json:"when,omitempty"`
}

// RecoverySource is the source of a recovered database.
type RecoverySource string

// Values of RecoverySource.
const (
	RecoverMember  RecoverySource = "Member"
	RecoverBackup  RecoverySource = "Backup"
	RecoverRebuild RecoverySource = "Rebuild"
	RecoverNone    RecoverySource = "None"
)

// RecoveryWhen is the condition under which a recovery runs.
type RecoveryWhen string

// Values of RecoveryWhen.
const (
	RecoverQuorumLost RecoveryWhen = "QuorumLost"
	RecoverAlways     RecoveryWhen = "Always"
)

// RecoveryPhase is the progress of a recovery.
type RecoveryPhase string

// Phases of recoveries.
const (
	// RecoveryCreating: the node creates the new cluster.
	RecoveryCreating RecoveryPhase = "Creating"
	// RecoveryFilling: the new cluster exists, and kube-ovn-controller or ovn-northd brings its content up to date. Readers of the database
	// wait.
	RecoveryFilling RecoveryPhase = "Filling"
	// RecoveryCompleted: the database serves.
	RecoveryCompleted RecoveryPhase = "Completed"
	// RecoveryRefused: the recovery was rejected and changed nothing. The message says why.
	RecoveryRefused RecoveryPhase = "Refused"
)

// RecoveryStatus is the last recovery of a database.
type RecoveryStatus struct {
	// id of the recovery in spec.central.recovery.
	ID    string        `json:"id"`
	Phase RecoveryPhase `json:"phase"`
	// +optional
	Source RecoverySource `json:"source,omitempty"`
	// node that creates the new cluster.
	// +optional
	Node string `json:"node,omitempty"`
	// backup is the file name of the backup that is the source.
	// +optional
	Backup string `json:"backup,omitempty"`
	// backupAddress is the IP address of the pod that serves the backup from its PersistentVolumeClaim. Empty if the backup is on the node.
	// +optional
	BackupAddress string `json:"backupAddress,omitempty"`
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`
	// +optional
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`
	// +optional
	Message string `json:"message,omitempty"`
}

// BackupStatus is one verified backup of a database.
type BackupStatus struct {
	// name of the file.
	Name string `json:"name"`
	// node that stores the backup.
	// +optional
	Node string `json:"node,omitempty"`
	// persistentVolumeClaim that stores the backup, if no node does.
	// +optional
	PersistentVolumeClaim string `json:"persistentVolumeClaim,omitempty"`

	Time metav1.Time `json:"time"`
	// rows in the backup.
	// +optional
	Rows int64 `json:"rows,omitempty"`
	// request is the value of spec.central.backup.request that requested this backup.
	// +optional
	Request string `json:"request,omitempty"`
}

// Requested reports whether the last completed requested backup is for this request.
func (d DatabaseStatus) Requested(request string) bool {
	return d.RequestedBackup != nil && d.RequestedBackup.Request == request
}

// Recovering reports whether a recovery of the database is in progress.
func (d DatabaseStatus) Recovering() bool {
	return d.Recovery != nil && (d.Recovery.Phase == RecoveryCreating || d.Recovery.Phase == RecoveryFilling)
}
