// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package render

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

// Labels that ovn-northd sets on its own pod: whether it is the active instance, and a hash of the database members'
// addresses in use.
const (
	northdLeaderLabel  = "ovn-northd-leader"
	northdMembersLabel = "kubeovn.io/northd-members"
)

// northdMetricsPort is the port at which ovn-northd's supervisor serves metrics to kube-ovn-monitor.
const northdMetricsPort = 6655

// NorthdObjects returns the Deployment of ovn-northd, one active and the others on standby, and the Service of the active
// instance.
func NorthdObjects(c Config) []Object {
	template := c.template(program{
		app:           centralApp,
		component:     NorthdName,
		container:     centralContainer,
		account:       centralAccount,
		priorityClass: clusterCritical,
		args:          []string{"northd", "--tls-dir=" + tlsDirectory},
		health:        northdHealthPort,
		ports:         []corev1.ContainerPort{port("metrics", northdMetricsPort)},
		resources:     firstSet(c.Spec.Central.Northd.Resources, c.Spec.Central.Resources, requests("200m", "256Mi")),
		security:      confined(),
		grace:         30,
		tolerations:   Tolerations(c.Spec.Central.Placement),
		mounts: []mount{
			{name: "run-ovn", path: "/run/ovn", source: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			tlsMount(NorthdSecret),
		},
	})
	template.Spec.SecurityContext = nobody()
	template.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: onDifferentNodes(centralApp, NorthdName)}
	placed(&template, c.Spec.Central.Placement)
	stamp(&template)
	return []Object{
		&corev1.Service{
			ObjectMeta: c.meta("ovn-northd", centralApp, NorthdName),
			Spec: corev1.ServiceSpec{
				Selector:       map[string]string{AppLabel: centralApp, v1alpha1.ComponentLabel: NorthdName, northdLeaderLabel: "true"},
				IPFamilyPolicy: new(corev1.IPFamilyPolicyPreferDualStack),
				Ports:          []corev1.ServicePort{servicePort("health", northdHealthPort)},
			},
		},
		c.deployment(centralApp, NorthdName, c.Spec.Central.NorthdReplicas, replaceInPlace(), template),
	}
}
