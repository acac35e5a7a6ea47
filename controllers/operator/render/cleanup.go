// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package render

import (
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

// cleanUpHealthPort differs from the other components' health ports: a leftover pod may run next to a new installation.
const cleanUpHealthPort = 10673

// CleanUp returns the DaemonSet that cleans the nodes after all other workloads have stopped. When its template changes,
// all pods are replaced at once. They do not use the API server, so they have no ServiceAccount and no token.
func CleanUp(c Config) *appsv1.DaemonSet {
	args := append([]string{
		"clean-up", "--cni-bin-dir=" + c.Spec.Agent.CNIBinDirectory, "--cni-conf-dir=" + c.Spec.Agent.CNIConfDirectory,
	}, c.toolingArgs()...)
	mounts := append([]mount{
		hostDirectory("run-openvswitch", "/run/openvswitch"),
		hostDirectory("run-ovn", "/run/ovn"),
		c.openVSwitchDirectory(),
		temporary(),
		hostDirectory("cni-bin", c.Spec.Agent.CNIBinDirectory),
		hostDirectory("cni-conf", c.Spec.Agent.CNIConfDirectory),
	}, c.tooling()...)
	if c.Spec.DeletionPolicy == v1alpha1.DeletionDelete {
		args = append(args, "--data-dir="+c.Spec.Central.DataDirectory)
		mounts = append(mounts, hostDirectory("data", c.Spec.Central.DataDirectory))
		if previous := c.PreviousDataDirectory; previous != "" {
			args = append(args, "--data-dir="+previous)
			mounts = append(mounts, hostDirectory("previous-data", previous))
		}
	}
	template := c.template(program{
		app:           CleanUpName,
		component:     CleanUpName,
		priorityClass: nodeCritical,
		args:          args,
		health:        cleanUpHealthPort,
		resources:     firstSet(c.Spec.Agent.Resources, requests("100m", "128Mi")),
		security:      c.datapath(),
		grace:         45,
		tolerations:   tolerateAll(),
		mounts:        mounts,
	})
	template.Spec.AutomountServiceAccountToken = new(false)
	container := &template.Spec.Containers[0]
	container.LivenessProbe = nil                  // the process exits by itself on a failure
	if level := c.Spec.Agent.LogLevel; level > 0 { // this process does not read the OVNCluster
		container.Env = append(container.Env, corev1.EnvVar{Name: "KILN_LOG_LEVEL", Value: strconv.Itoa(int(level))})
	}
	stamp(&template)
	return c.daemonSet(CleanUpName, CleanUpName, rolling("100%"), template)
}
