// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package render builds the objects of every operand from a Config. It is pure: the same Config gives the same objects,
// which the operator applies, owns and prunes. Objects contain only fields that Kiln decides. All other fields keep the
// API server's defaults, so a second apply changes nothing.
package render

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

// Object is any API object.
type Object = interface {
	metav1.Object
	runtime.Object
}

// Config holds all inputs of the objects.
type Config struct {
	// Namespace of the operator and every operand.
	Namespace string
	// Image of every component.
	Image string
	// Spec is the OVNCluster's spec with the API's defaults, JoinCIDRs and numbers of replicas filled in.
	Spec v1alpha1.OVNClusterSpec
	// Members are the nodes of the members of each database, by its Flag. A member's data is on its node, so the pods are bound to
	// these nodes.
	Members map[string][]string
	// PreviousDataDirectory is the directory of databases whose members have not moved their files to spec.central.dataDirectory; empty
	// if there are none.
	PreviousDataDirectory string
	// TunnelTypes are the encapsulations that nodes offer, if there are several: while spec.network.tunnelType changes.
	TunnelTypes []v1alpha1.TunnelType
	// HeldNodes are excluded from ovs-ovn and kube-ovn-cni.
	HeldNodes []string
}

// Labels of all objects that the operator creates.
const (
	// ManagedByLabel and ManagedBy mark the objects that the operator applies. They are its inventory.
	ManagedByLabel = "app.kubernetes.io/managed-by"
	ManagedBy      = "kiln-operator"
	// AppLabel is the label by which users and tools select the pods: `ovn-central`, `ovs`, `kube-ovn-controller`, `kube-ovn-cni`.
	AppLabel = "app"
)

// Secrets and the ConfigMap with certificates. The operator fills them.
const (
	NorthdSecret     = "kiln-tls-northd"
	ControllerSecret = "kiln-tls-controller"
	// TrustConfigMap holds, under TrustFile, the CA bundle with which nodes verify the southbound database.
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

// centralAccount is the ServiceAccount of the databases and northd.
const centralAccount = "ovn-central"

// OpenVSwitchAccount is the ServiceAccount of ovs-ovn. The operator grants chassis certificates to requests of this
// account only.
const OpenVSwitchAccount = OpenVSwitch

// ChassisSigner is the signer of the nodes' certificates for the southbound database. Their common name is the chassis.
// The role ovn-controller of ovsdb-server limits a node's writes by this name.
const ChassisSigner = "kubeovn.io/chassis"

// meta returns the metadata of an object of the component.
func (c Config) meta(name, app, component string) metav1.ObjectMeta {
	labels := podLabels(app, component)
	labels[ManagedByLabel] = ManagedBy
	return metav1.ObjectMeta{Name: name, Namespace: c.Namespace, Labels: labels}
}

// clusterMeta returns the metadata of a cluster-scoped object.
func (c Config) clusterMeta(name, app, component string) metav1.ObjectMeta {
	m := c.meta(name, app, component)
	m.Namespace = ""
	return m
}

func podLabels(app, component string) map[string]string {
	return map[string]string{AppLabel: app, v1alpha1.ComponentLabel: component, v1alpha1.PartOfLabel: v1alpha1.PartOf}
}

// selector returns the label selector of a workload. The API makes it immutable, so it has only the labels that identify
// a workload.
func selector(app, component string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{AppLabel: app, v1alpha1.ComponentLabel: component}}
}
