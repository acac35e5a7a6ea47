// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package render builds the objects of every operand from a Config. It is pure: the same Config gives the same objects, which the
// operator applies, owns and prunes. Only what Kiln decides is set; everything else is left to the API server's defaults, so
// that applying again changes nothing.
package render

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

// Object is any API object.
type Object interface {
	metav1.Object
	runtime.Object
}

// Config is everything that the objects depend on.
type Config struct {
	// Namespace of the operator and every operand.
	Namespace string
	// Image of every component.
	Image string
	// Spec with the API's defaults and JoinCIDRs filled in.
	Spec v1alpha1.OVNClusterSpec
	// NorthboundNodes and SouthboundNodes are the nodes of the databases' members. Their data is there, so their pods are
	// bound to these and no others.
	NorthboundNodes []string
	SouthboundNodes []string
	// HeldNodes get no pods of what runs on every node.
	HeldNodes []string
	// PatchPods: pods of another version than the operator's run or are wanted. They may patch `pods` and not only `pods/status`.
	PatchPods bool
}

// Labels of everything the operator makes.
const (
	// ManagedByLabel and ManagedBy mark the objects that the operator applied: its inventory.
	ManagedByLabel = "app.kubernetes.io/managed-by"
	ManagedBy      = "kiln-operator"
	// PartOfLabel and PartOf mark those and the pods.
	PartOfLabel = "app.kubernetes.io/part-of"
	PartOf      = "kiln"
	// ComponentLabel tells the workloads apart by name.
	ComponentLabel = "app.kubernetes.io/component"
	// AppLabel is the label by which users and tools select the pods: `ovn-central`, `ovs`, `kube-ovn-controller`, `kube-ovn-cni`.
	AppLabel = "app"
)

// Workloads, which are also the components in the status.
const (
	NorthboundName = "ovn-central-nb"
	SouthboundName = "ovn-central-sb"
	NorthdName     = "ovn-central-northd"
	OpenVSwitch    = "ovs-ovn"
	ControllerName = "kube-ovn-controller"
	AgentName      = "kube-ovn-cni"
)

// Components lists the workloads in the order in which they come up.
var Components = []string{NorthboundName, SouthboundName, NorthdName, OpenVSwitch, ControllerName, AgentName}

// Secrets and the ConfigMap that hold certificates; the operator fills them.
const (
	NorthdSecret     = "kiln-tls-northd"
	ControllerSecret = "kiln-tls-controller"
	// TrustConfigMap holds, under TrustFile, whom nodes trust to be the southbound database.
	TrustConfigMap = "kiln-trust"
	TrustFile      = "sb-server.crt"
)

// Ports of health and metrics.
const (
	controllerHealthPort  = 10660
	agentHealthPort       = 10665
	northdHealthPort      = 10671
	openVSwitchHealthPort = 10672
)

// VersionPorts are where pods tell their versions, by component. Databases, and the pod with a claim for backups, do so by their admin endpoints.
var VersionPorts = map[string]uint16{
	NorthdName: northdHealthPort, OpenVSwitch: openVSwitchHealthPort, ControllerName: controllerHealthPort, AgentName: agentHealthPort,
}

// centralAccount is the ServiceAccount of the databases and northd.
const centralAccount = "ovn-central"

// OpenVSwitchAccount is the ServiceAccount of ovs-ovn: the only one whose requests for chassis certificates are granted.
const OpenVSwitchAccount = OpenVSwitch

// ChassisSigner is the signer of the nodes' certificates for the southbound database. Their common name is the chassis, by which
// ovsdb-server's role ovn-controller limits the writes of a node.
const ChassisSigner = "kubeovn.io/chassis"

// ControlPlaneLabel selects the nodes of components that have no node selector of their own.
const ControlPlaneLabel = "node-role.kubernetes.io/control-plane"

// Linux is the value of corev1.LabelOSStable of the nodes that have a network of Kiln's.
const Linux = "linux"

// NodeSelector of a component that is not on every node.
func NodeSelector(p v1alpha1.Placement) map[string]string {
	if len(p.NodeSelector) > 0 {
		return p.NodeSelector
	}
	return map[string]string{ControlPlaneLabel: ""}
}

// meta names an object of the component `name`.
func (c Config) meta(name, app, component string) metav1.ObjectMeta {
	labels := podLabels(app, component)
	labels[ManagedByLabel] = ManagedBy
	return metav1.ObjectMeta{Name: name, Namespace: c.Namespace, Labels: labels}
}

// clusterMeta is meta for a cluster-scoped object.
func (c Config) clusterMeta(name, app, component string) metav1.ObjectMeta {
	m := c.meta(name, app, component)
	m.Namespace = ""
	return m
}

func podLabels(app, component string) map[string]string {
	return map[string]string{AppLabel: app, ComponentLabel: component, PartOfLabel: PartOf}
}

// selector of a workload. It is immutable in the API, so it holds no more than is needed to tell workloads apart.
func selector(app, component string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{AppLabel: app, ComponentLabel: component}}
}
