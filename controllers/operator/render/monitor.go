// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package render

import "github.com/kiln-net/kiln/api/v1alpha1"

const (
	// MonitorSecret holds the certificate with which kube-ovn-monitor reads metrics.
	MonitorSecret = "kiln-tls-monitor"

	monitorHealthPort = 10661
)

// HasMonitor says whether kube-ovn-monitor runs.
func HasMonitor(spec *v1alpha1.OVNClusterSpec) bool {
	return spec.Monitoring.Monitor != v1alpha1.MonitoringDisabled
}

// MonitorObjects returns the Deployment of kube-ovn-monitor. It has one pod: another one would export every series twice.
func MonitorObjects(c Config) []Object {
	if !HasMonitor(&c.Spec) {
		return nil
	}
	template := c.template(program{
		app:           MonitorName,
		component:     MonitorName,
		account:       MonitorName,
		priorityClass: clusterCritical,
		args:          []string{"monitor", "--tls-dir=" + tlsDirectory},
		health:        monitorHealthPort,
		resources:     firstSet(c.Spec.Monitoring.Resources, requests("10m", "64Mi")),
		security:      confined(),
		grace:         30,
		tolerations:   Tolerations(c.Spec.Central.Placement),
		mounts:        []mount{tlsMount(MonitorSecret)},
	})
	template.Spec.SecurityContext = nobody()
	placed(&template, c.Spec.Central.Placement)
	stamp(&template)
	return []Object{c.deployment(MonitorName, MonitorName, 1, replaceInPlace(), template)}
}
