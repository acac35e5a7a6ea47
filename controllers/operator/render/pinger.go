// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package render

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

// pingerPort is the port of metrics and health of kube-ovn-pinger, in the network of the pod.
const pingerPort = 8080

func hasPinger(spec *v1alpha1.OVNClusterSpec) bool { return spec.Pinger.Mode == v1alpha1.PingerEnabled }

// PingerObjects returns the DaemonSet of kube-ovn-pinger; nil if it is disabled. Its pods are on the pod network and use the cluster's DNS and the
// ClusterIP of the API server, because they measure the network of other pods. They have no priority: a node that is full is no reason to evict others.
func PingerObjects(c Config) []Object {
	if !hasPinger(&c.Spec) {
		return nil
	}
	template := c.template(program{
		app:         PingerName,
		component:   PingerName,
		container:   "pinger",
		account:     PingerName,
		args:        []string{"pinger", "--mode=server"},
		health:      pingerPort,
		resources:   firstSet(c.Spec.Pinger.Resources, requests("20m", "64Mi")),
		security:    confined(),
		grace:       5,
		tolerations: tolerateAll(),
	})
	spec := &template.Spec
	spec.HostNetwork, spec.DNSPolicy = false, corev1.DNSClusterFirst
	spec.SecurityContext = nobody()
	// The kernel's sockets for echo requests, which need no capability (icmp(7)). Kubernetes counts this parameter among the safe ones.
	spec.SecurityContext.Sysctls = []corev1.Sysctl{{Name: "net.ipv4.ping_group_range", Value: "0 2147483647"}}
	container := &spec.Containers[0]
	container.Env = []corev1.EnvVar{
		fieldEnv("NODE_NAME", "spec.nodeName"),
		fieldEnv("POD_NAMESPACE", "metadata.namespace"),
		fieldEnv("POD_IPS", "status.podIPs"),
		fieldEnv("HOST_IPS", "status.hostIPs"),
	}
	container.Ports = []corev1.ContainerPort{{Name: "metrics", ContainerPort: pingerPort, Protocol: corev1.ProtocolTCP}}
	container.LivenessProbe.HTTPGet.Host, container.ReadinessProbe.HTTPGet.Host = "", "" // the pod's own address
	stamp(&template)
	template.Spec.Affinity = c.apartFromHeld()
	return []Object{c.daemonSet(PingerName, PingerName, rolling("10%"), template)}
}
