// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package render

import (
	"cmp"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

const openVSwitchApp = "ovs"

// trustDirectory is the mount point of TrustConfigMap on nodes.
const trustDirectory = "/etc/kiln/trust"

// OpenVSwitchObjects returns the DaemonSet of Open vSwitch and ovn-controller. A node's key, certificate and
// configuration are in nodes.openVSwitchDirectory and survive the pod.
func OpenVSwitchObjects(c Config) []Object {
	args := []string{
		"ovs",
		"--datapath=" + string(c.Spec.Nodes.Datapath),
		"--tunnel-type=" + c.tunnelTypes(),
		"--trust-dir=" + trustDirectory,
	}
	if i := c.Spec.Nodes.TunnelInterface; i != "" {
		args = append(args, "--tunnel-interface="+i)
	}
	trust := corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: TrustConfigMap},
	}}
	template := c.template(program{
		app:           openVSwitchApp,
		component:     OpenVSwitch,
		container:     "openvswitch",
		account:       OpenVSwitchAccount,
		priorityClass: nodeCritical,
		args:          args,
		health:        openVSwitchHealthPort,
		resources:     firstSet(c.Spec.Agent.OpenVSwitch.Resources, c.Spec.Agent.Resources, requests("200m", "256Mi")),
		security:      c.datapath(),
		grace:         75, // time to stop three daemons
		tolerations:   tolerateAll(),
		mounts: []mount{
			hostDirectory("run-openvswitch", "/run/openvswitch"),
			hostDirectory("run-ovn", "/run/ovn"),
			c.openVSwitchDirectory(),
			temporary(),
			{name: "trust", path: trustDirectory, readOnly: true, source: trust},
			interfaceManager("networkd", "/run/systemd/netif/links"),
			interfaceManager("networkd-leases", "/run/systemd/netif/leases"),
			interfaceManager("networkmanager", "/run/NetworkManager/devices"),
			{name: "sysctls", path: sysctlDirectory, source: hostPath("/proc/sys/net", corev1.HostPathDirectory)},
		},
	})
	container := &template.Spec.Containers[0]
	container.Env = append(container.Env, corev1.EnvVar{Name: "KILN_SYSCTLS", Value: sysctlDirectory})
	stamp(&template)
	template.Spec.Affinity = c.apartFromHeld()
	return []Object{c.daemonSet(openVSwitchApp, OpenVSwitch, onDelete(), template)}
}

// interfaceManager mounts the directory in which a program of the node stores which interfaces it configures (kernel.Managers). It is empty on
// nodes without the program.
func interfaceManager(name, path string) mount {
	m := hostDirectory(name, path)
	m.readOnly = true
	return m
}

// tunnelTypes returns the encapsulations of a node. There are several while spec.network.tunnelType changes.
func (c Config) tunnelTypes() string {
	if len(c.TunnelTypes) < 2 {
		return string(c.Spec.Network.TunnelType)
	}
	names := make([]string, 0, len(c.TunnelTypes))
	for _, t := range c.TunnelTypes {
		names = append(names, string(t))
	}
	return strings.Join(names, ",")
}

// TunnelType returns the encapsulation in the arguments of ovs-ovn, the first one of several.
func TunnelType(openVSwitch *appsv1.DaemonSet) v1alpha1.TunnelType {
	for _, arg := range openVSwitch.Spec.Template.Spec.Containers[0].Args {
		if value, found := strings.CutPrefix(arg, "--tunnel-type="); found {
			first, _, _ := strings.Cut(value, ",")
			return v1alpha1.TunnelType(first)
		}
	}
	return ""
}

// openVSwitchDirectory mounts the directory of Open vSwitch's database and of the node's certificate where the programs expect it.
func (c Config) openVSwitchDirectory() mount {
	const inside = "/etc/openvswitch"
	m := hostDirectory("etc-openvswitch", cmp.Or(c.Spec.Nodes.OpenVSwitchDirectory, inside))
	m.path = inside
	return m
}

// apartFromHeld returns an affinity that excludes HeldNodes by name. Set it after the stamp, so that pods on other nodes
// are not replaced.
func (c Config) apartFromHeld() *corev1.Affinity {
	if len(c.HeldNodes) == 0 {
		return nil
	}
	var term corev1.NodeSelectorTerm
	for _, name := range c.HeldNodes {
		term.MatchFields = append(term.MatchFields, corev1.NodeSelectorRequirement{
			Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpNotIn, Values: []string{name}, // the API allows one value
		})
	}
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{term}},
	}}
}
