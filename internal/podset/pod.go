// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package podset

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/northbound/desired"
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

// World is the complete initial state of an index.
type World struct {
	Namespaces map[string]map[string]string
	Pods       []Pod
	// Connected are the ports that may be in the database.
	Connected map[Key]bool
	Uses      map[desired.Owner][]Selector
}

// Load fills an index with the result of read. It does not notify observers. It holds the lock, so that events wait: otherwise
// an event between reading and filling would be overwritten, and it would not be repeated. read must not call the index.
func (x *Index) Load(read func() (World, error)) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	w, err := read()
	if err != nil {
		return err
	}
	c := newDelta()
	for name, labels := range w.Namespaces {
		x.setNamespace(c, name, labels)
	}
	for _, p := range w.Pods {
		x.setPod(c, p)
		if stored := x.pods[p.Key]; w.Connected[p.Key] {
			stored.connected = true
		}
	}
	for owner, selectors := range w.Uses {
		x.use(c, owner, selectors)
		x.settle(c, owner)
	}
	return nil
}
