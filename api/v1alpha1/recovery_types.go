// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Backup says when members write backups of the northbound database, to the directory `backups` beside its file, and how many stay; and where one
// more pod keeps others.
type Backup struct {
	// interval between backups. 0s: none are made.
	// +optional
	// +kubebuilder:default="24h"
	// +kubebuilder:validation:XValidation:rule="duration(self) == duration('0s') || duration(self) >= duration('1m')",message="interval is 1m or longer, or 0s for none"
	Interval metav1.Duration `json:"interval,omitempty"`
	// keep is how many of a member's backups stay, and how many on the claim: the newest.
	// +optional
	// +kubebuilder:default=7
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Keep int32 `json:"keep,omitempty"`
	// request asks for a backup beside those of the interval: a name that none had before, such as a date, which becomes part of the file's. The
	// backup stays, beyond keep, until the field changes.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`
	Request string `json:"request,omitempty"`
	// persistentVolumeClaim on which one more pod keeps backups, which it makes at the same times from any member that serves. Members do not need
	// it: they go on with their own, on their nodes.
	// +optional
	PersistentVolumeClaim *BackupClaim `json:"persistentVolumeClaim,omitempty"`
}

// BackupClaim is a PersistentVolumeClaim for backups.
type BackupClaim struct {
	// claimName is its name, in the operator's namespace. One pod mounts it, so any access mode but ReadOnlyMany will do; it has to be
	// writable for the group 65532, and to be had on a node of spec.central.nodeSelector. It is never deleted.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	ClaimName string `json:"claimName"`
}

// Recovery makes a new cluster of one member on one node, which the other members then join; what files they have is set aside. It
// is carried out once: the status tells of it under its id, and only another id begins another one.
// +kubebuilder:validation:XValidation:rule="!has(self.backup) || self.northbound == 'Backup'",message="backup names a file for northbound: Backup"
// +kubebuilder:validation:XValidation:rule="self.northbound != 'None' || self.southbound != 'None'",message="northbound and southbound are both None: nothing would be recovered"
type Recovery struct {
	// id of this recovery: any name that no earlier one had, such as a date.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	ID string `json:"id"`
	// northbound is what the northbound database is made from: the file of the Member that has most, the newest Backup, nothing (Rebuild:
	// kube-ovn-controller writes all of it from the Kubernetes API), or None for leaving it alone.
	// +optional
	// +kubebuilder:default=Member
	// +kubebuilder:validation:Enum=Member;Backup;Rebuild;None
	Northbound RecoverySource `json:"northbound,omitempty"`
	// southbound is what the southbound database is made from: the file of the Member that has most, nothing (Rebuild: ovn-northd writes it
	// from the northbound one, and traffic between nodes pauses until they have taken their ports again), or None for leaving it alone.
	// +optional
	// +kubebuilder:default=Member
	// +kubebuilder:validation:Enum=Member;Rebuild;None
	Southbound RecoverySource `json:"southbound,omitempty"`
	// node of the new member. By default the one whose member has most, or the newest backup.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node,omitempty"`
	// backup is the name of a backup's file. The newest by default.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9._-]+$`
	Backup string `json:"backup,omitempty"`
	// when QuorumLost, a database that has a leader, or may yet get one, is left alone. Always replaces one that serves, too.
	// +optional
	// +kubebuilder:default=QuorumLost
	// +kubebuilder:validation:Enum=QuorumLost;Always
	When RecoveryWhen `json:"when,omitempty"`
}

// RecoverySource is what a database is made from.
type RecoverySource string

// RecoverySources.
const (
	RecoverMember  RecoverySource = "Member"
	RecoverBackup  RecoverySource = "Backup"
	RecoverRebuild RecoverySource = "Rebuild"
	RecoverNone    RecoverySource = "None"
)

// RecoveryWhen is under which condition a recovery is carried out.
type RecoveryWhen string

// Conditions of recoveries.
const (
	RecoverQuorumLost RecoveryWhen = "QuorumLost"
	RecoverAlways     RecoveryWhen = "Always"
)

// RecoveryPhase is how far a recovery is.
type RecoveryPhase string

// Phases of recoveries.
const (
	// RecoveryCreating: the node makes the new cluster.
	RecoveryCreating RecoveryPhase = "Creating"
	// RecoveryFilling: the new cluster is there, and whoever writes it brings it up to date. Its readers wait.
	RecoveryFilling RecoveryPhase = "Filling"
	// RecoveryCompleted: the database serves.
	RecoveryCompleted RecoveryPhase = "Completed"
	// RecoveryRefused: nothing was done; the message says why.
	RecoveryRefused RecoveryPhase = "Refused"
)

// RecoveryStatus is the last recovery of a database.
type RecoveryStatus struct {
	// id as it was in spec.central.recovery.
	ID    string        `json:"id"`
	Phase RecoveryPhase `json:"phase"`
	// +optional
	Source RecoverySource `json:"source,omitempty"`
	// node that makes the new cluster.
	// +optional
	Node string `json:"node,omitempty"`
	// backup it is made from.
	// +optional
	Backup string `json:"backup,omitempty"`
	// backupAddress is the IP address of the pod that has the backup on its PersistentVolumeClaim. Empty when the node has it.
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
	// node that has it.
	// +optional
	Node string `json:"node,omitempty"`
	// persistentVolumeClaim that has it, where no node does.
	// +optional
	PersistentVolumeClaim string `json:"persistentVolumeClaim,omitempty"`

	Time metav1.Time `json:"time"`
	// rows in it.
	// +optional
	Rows int64 `json:"rows,omitempty"`
	// request by which it was asked for.
	// +optional
	Request string `json:"request,omitempty"`
}

// Requested says whether the backup that was asked for last is that of this request.
func (d DatabaseStatus) Requested(request string) bool {
	return d.RequestedBackup != nil && d.RequestedBackup.Request == request
}

// Recovering says whether a recovery of the database is under way.
func (d DatabaseStatus) Recovering() bool {
	return d.Recovery != nil && (d.Recovery.Phase == RecoveryCreating || d.Recovery.Phase == RecoveryFilling)
}
