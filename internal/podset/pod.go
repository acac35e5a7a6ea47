// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package podset

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

var keyVpc = kubeovnv1.AnnotationLogicalRouter.Key()

// Counts reports whether a pod can be in a set: it is on a node and its containers may run.
func Counts(p *corev1.Pod) bool {
	return p.Spec.NodeName != "" && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
}

// Of returns the properties of a pod that decide which sets its port on the network of a provider is in. groups are the security groups of the port
// (grants.Groups.Sets). The VPC is the one that the pod's annotations have.
func Of(p *corev1.Pod, provider string, groups []string) Pod {
	out := Pod{
		Mirror: kubeovnv1.IsMirror(p.Annotations) && !p.Spec.HostNetwork,
		Key:    KeyOf(p, provider),
		UID:    p.UID, Labels: p.Labels, Node: p.Spec.NodeName, HostNetwork: p.Spec.HostNetwork,
		Groups: groups, Vpc: p.Annotations[keyVpc],
	}
	for i := range p.Spec.InitContainers {
		if c := &p.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			out.Ports = appendPorts(out.Ports, c)
		}
	}
	for i := range p.Spec.Containers {
		out.Ports = appendPorts(out.Ports, &p.Spec.Containers[i])
	}
	return out
}

func appendPorts(ports []Port, c *corev1.Container) []Port {
	for _, p := range c.Ports {
		if p.Name != "" {
			ports = append(ports, Port{Name: p.Name, Protocol: string(cmp.Or(p.Protocol, corev1.ProtocolTCP)), Number: p.ContainerPort})
		}
	}
	return ports
}
