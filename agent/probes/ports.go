// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package probes

import (
	"math"
	"net/netip"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// PortsOf returns the TCP ports at the pod's addresses to which the kubelet connects for probes and lifecycle hooks of containers and
// sidecars (restartable init containers). They are sorted, and fixed when the pod is created. Ephemeral containers have none.
func PortsOf(pod *corev1.Pod, addresses []netip.Addr) []uint16 {
	var ports []uint16
	for _, c := range watchedContainers(pod) {
		for _, h := range handlersOf(&c) {
			if port, ok := portOf(&c, h, addresses); ok {
				ports = append(ports, port)
			}
		}
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

// watchedContainers returns the containers that may have probes and hooks.
func watchedContainers(pod *corev1.Pod) []corev1.Container {
	out := slices.Clone(pod.Spec.Containers)
	for _, c := range pod.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			out = append(out, c)
		}
	}
	return out
}

// handlersOf returns the probes and hooks of a container.
func handlersOf(c *corev1.Container) []corev1.ProbeHandler {
	var out []corev1.ProbeHandler
	for _, probe := range []*corev1.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
		if probe != nil {
			out = append(out, probe.ProbeHandler)
		}
	}
	if c.Lifecycle == nil {
		return out
	}
	for _, hook := range []*corev1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
		if hook != nil {
			out = append(out, corev1.ProbeHandler{HTTPGet: hook.HTTPGet, TCPSocket: hook.TCPSocket})
		}
	}
	return out
}

// portOf returns the port at the pod's addresses to which a handler connects; false if it connects to none of them.
func portOf(c *corev1.Container, h corev1.ProbeHandler, addresses []netip.Addr) (uint16, bool) {
	switch {
	case h.HTTPGet != nil:
		return resolve(c, h.HTTPGet.Host, h.HTTPGet.Port, addresses)
	case h.TCPSocket != nil:
		return resolve(c, h.TCPSocket.Host, h.TCPSocket.Port, addresses)
	case h.GRPC != nil:
		return resolve(c, "", intstr.FromInt32(h.GRPC.Port), addresses)
	}
	return 0, false
}

// resolve resolves a port as the kubelet does (pkg/probe/util.go, ResolveContainerPort): a string is the name of a port of the same
// container, or else a number. A handler with another host than the pod's addresses does not connect to the pod.
func resolve(c *corev1.Container, host string, port intstr.IntOrString, addresses []netip.Addr) (uint16, bool) {
	if host != "" {
		if address, err := netip.ParseAddr(host); err != nil || !slices.Contains(addresses, address) {
			return 0, false
		}
	}
	number := int64(port.IntVal)
	if port.Type == intstr.String {
		i := slices.IndexFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == port.StrVal })
		if i >= 0 {
			number = int64(c.Ports[i].ContainerPort)
		} else {
			number, _ = strconv.ParseInt(port.StrVal, 10, 32)
		}
	}
	if number <= 0 || number > math.MaxUint16 {
		return 0, false
	}
	return uint16(number), true
}
