// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package render

import (
	"path"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

// AgentObjects returns the DaemonSet of kube-ovn-cni, which runs the CNI server and programs routes on every node.
func AgentObjects(c Config) []Object {
	security := onHost(netAdmin, netRaw, sysAdmin)
	security.AllowPrivilegeEscalation = nil // always true with SYS_ADMIN
	template := c.template(program{
		app:           AgentName,
		component:     AgentName,
		container:     "cni-server",
		account:       AgentName,
		priorityClass: nodeCritical,
		args:          agentArgs(c),
		health:        agentHealthPort,
		resources:     firstSet(c.Spec.Agent.CNI.Resources, c.Spec.Agent.Resources, requests("100m", "128Mi")),
		security:      security,
		grace:         30,
		tolerations:   tolerateAll(),
		mounts: append([]mount{
			hostDirectory("run-openvswitch", "/run/openvswitch"),
			hostDirectory("cni-bin", c.Spec.Agent.CNIBinDirectory),
			hostDirectory("cni-conf", c.Spec.Agent.CNIConfDirectory),
			podNamespaces(),
			{name: "sysctls", path: sysctlDirectory, source: hostPath("/proc/sys/net", corev1.HostPathDirectory)},
		}, c.tooling()...),
	})
	stamp(&template)
	template.Spec.Affinity = c.apartFromHeld()
	return []Object{c.daemonSet(AgentName, AgentName, onDelete(), template)}
}

// defaultPriority is the priority of the CNI configuration that needs no setting.
const defaultPriority = "01"

// sysctlDirectory is the mount point of the node's /proc/sys/net in the agent's container. Container runtimes reject
// mounts below /proc.
const sysctlDirectory = "/host/proc/sys/net"

func agentArgs(c Config) []string {
	args := []string{
		"agent",
		"--service-cidrs=" + strings.Join(c.Spec.Network.ServiceCIDRs, ","),
		"--tunnel-type=" + c.tunnelTypes(),
		"--cni-bin-dir=" + c.Spec.Agent.CNIBinDirectory,
		"--cni-conf-dir=" + c.Spec.Agent.CNIConfDirectory,
		"--sysctl-dir=" + path.Dir(sysctlDirectory),
	}
	if c.Spec.Services.NodeAccess == v1alpha1.NodeAccessKiln {
		args = append(args, "--serve-services")
	}
	if i := c.Spec.Nodes.TunnelInterface; i != "" {
		args = append(args, "--tunnel-interface="+i)
	}
	if m := c.Spec.Network.MTU; m != 0 {
		args = append(args, "--mtu="+strconv.Itoa(int(m)))
	}
	if p := c.Spec.Agent.CNIConfPriority; p != "" && p != defaultPriority {
		args = append(args, "--cni-conf-priority="+p)
	}
	return append(args, c.toolingArgs()...)
}

// toolingDirectory is the mount point of the node's directory for the kubectl plugin: the node's /usr/bin, for example, must not hide the program in
// the image.
const toolingDirectory = "/host/tooling"

// tooling mounts the node's directory for the kubectl plugin, if it is set.
func (c Config) tooling() []mount {
	directory := c.Spec.Agent.ToolingDirectory
	if directory == "" {
		return nil
	}
	return []mount{{name: "tooling", path: toolingDirectory, source: hostPath(directory, corev1.HostPathDirectoryOrCreate)}}
}

func (c Config) toolingArgs() []string {
	if c.Spec.Agent.ToolingDirectory == "" {
		return nil
	}
	return []string{"--tooling-dir=" + toolingDirectory}
}

// podNamespaces mounts the directory in which the container runtime keeps the network namespaces of pods. The agent opens
// them by path, so mounts that appear on the node must appear in its container.
func podNamespaces() mount {
	m := hostDirectory("netns", "/run/netns")
	m.propagation = new(corev1.MountPropagationHostToContainer)
	return m
}
