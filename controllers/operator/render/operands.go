// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package render

import (
	"slices"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

// Workloads. Those with a row in the OVNCluster's status are its components.
const (
	NorthboundName = "ovn-central-nb"
	SouthboundName = "ovn-central-sb"
	NorthdName     = "ovn-central-northd"
	OpenVSwitch    = "ovs-ovn"
	ControllerName = "kube-ovn-controller"
	AgentName      = "kube-ovn-cni"
	// PingerName checks the network from a pod of every node.
	PingerName = "kube-ovn-pinger"
	// SpeakerName announces pods, subnets and Services by BGP.
	SpeakerName = "kube-ovn-speaker"
	// BackupsName stores backups on a PersistentVolumeClaim, if the spec names one.
	BackupsName = "ovn-central-backups"
	// MonitorName exports the metrics of the databases and of ovn-northd.
	MonitorName = "kube-ovn-monitor"
	// ImageName pulls an image on nodes before their pods are replaced.
	ImageName = "kiln-image"
	// CleanUpName removes all state of Kiln from the nodes. Its pod becomes ready when the node is clean.
	CleanUpName = "kiln-clean-up"
)

// Operand is a workload that the operator runs.
type Operand struct {
	// Name of the workload, and value of v1alpha1.ComponentLabel of its pods.
	Name string
	// Kind is the workload's: Deployment, StatefulSet or DaemonSet.
	Kind string
	// Objects returns the workload and what belongs to it, without its permissions.
	Objects func(Config) []Object
	// Stage is the stage of an upgrade in which its pods are replaced; empty if upgrades do not wait for them.
	Stage v1alpha1.UpgradeStage
	// Database is true for the members of a database.
	Database bool
	// VersionPort is the port on which its pods serve their versions; 0 for other ways, and for pods without versions.
	VersionPort uint16
	// Runs says for an optional operand whether this spec has it; nil for an operand that the network needs, which always runs.
	Runs func(*v1alpha1.OVNClusterSpec) bool
	// OperatorImage is true if its pods run the operator's own image, so that upgrades and rollbacks do not change their version.
	OperatorImage bool
	// Hidden is true if it has no row in the status.
	Hidden bool
	// Removal is its step when the OVNCluster is deleted; 0 for the workload of the removal itself.
	Removal RemovalStep
}

// RemovalStep orders the end of operands: first the pods with a network of Kiln, which the agents take down, and the speaker, then the components that change the
// network, then the daemons that compute and forward and the backups, then the databases.
type RemovalStep int

// Steps of a removal. After them CleanUpName runs.
const (
	StopPods RemovalStep = iota + 1
	StopWriters
	StopDaemons
	StopDatabases
)

// Operands are all workloads, in the order in which they come up. Permissions are in accesses, certificates in package certs.
var Operands = []Operand{
	membersOf(Northbound), membersOf(Southbound),
	{
		Name: NorthdName, Kind: "Deployment", Objects: NorthdObjects,
		Stage: v1alpha1.StageNorthd, VersionPort: northdHealthPort, Removal: StopDaemons,
	},
	{
		Name: OpenVSwitch, Kind: "DaemonSet", Objects: OpenVSwitchObjects,
		Stage: v1alpha1.StageNodes, VersionPort: openVSwitchHealthPort, Removal: StopDaemons,
	},
	{
		Name: ControllerName, Kind: "Deployment", Objects: ControllerObjects,
		Stage: v1alpha1.StageController, VersionPort: controllerHealthPort, Removal: StopWriters,
	},
	{
		Name: AgentName, Kind: "DaemonSet", Objects: AgentObjects,
		Stage: v1alpha1.StageNodes, VersionPort: agentHealthPort, Removal: StopWriters,
	},
	{Name: BackupsName, Kind: "Deployment", Objects: BackupsObjects, Runs: hasBackups, Removal: StopDaemons},
	{Name: PingerName, Kind: "DaemonSet", Objects: PingerObjects, Runs: hasPinger, Removal: StopPods},
	{Name: SpeakerName, Kind: "DaemonSet", Objects: SpeakerObjects, Runs: hasSpeaker, Removal: StopPods},
	{
		Name: MonitorName, Kind: "Deployment", Objects: MonitorObjects, VersionPort: monitorHealthPort, Runs: HasMonitor, OperatorImage: true,
		Removal: StopWriters,
	},
	{Name: ImageName, Kind: "DaemonSet", Objects: ImageObjects, Hidden: true, Removal: StopWriters},
	{Name: CleanUpName, Kind: "DaemonSet", Objects: func(c Config) []Object { return []Object{CleanUp(c)} }, Hidden: true},
}

// membersOf returns the operand of the members of a database.
func membersOf(db Database) Operand {
	return Operand{
		Name: db.Workload, Kind: "StatefulSet", Objects: func(c Config) []Object { return DatabaseObjects(c, db) },
		Stage: v1alpha1.StageDatabases, Database: true, Removal: StopDatabases,
	}
}

// OperandOf returns the operand with this name; only its name is set if there is none.
func OperandOf(name string) Operand {
	i := slices.IndexFunc(Operands, func(o Operand) bool { return o.Name == name })
	if i < 0 {
		return Operand{Name: name}
	}
	return Operands[i]
}

// Select returns the names of the operands that have a property.
func Select(has func(Operand) bool) []string {
	var names []string
	for _, o := range Operands {
		if has(o) {
			names = append(names, o.Name)
		}
	}
	return names
}

// Components returns the operands that always run and have a row in the status, in the order in which they come up.
func Components() []string {
	return Select(func(o Operand) bool { return o.Runs == nil && !o.Hidden })
}

// OnNodes returns the operands that connect nodes, whose pods are replaced node by node.
func OnNodes() []string {
	return Select(func(o Operand) bool { return o.Stage == v1alpha1.StageNodes })
}
