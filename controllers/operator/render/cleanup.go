// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package render

import (
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

// CleanUpName is the DaemonSet that takes everything of Kiln from the nodes. A pod of it is ready when its node is clean.
const CleanUpName = "kiln-clean-up"

// cleanUpHealthPort of its pods, which is nobody else's: one that is left over meets a new installation.
const cleanUpHealthPort = 10673

// CleanUp runs on every node once nothing else does, and at once anew everywhere when what it is to take away changes. Its pods speak to nobody, so they have no rights in the API.
func CleanUp(c Config) *appsv1.DaemonSet {
	args := []string{
		"clean-up", "--cni-bin-dir=" + c.Spec.Agent.CNIBinDirectory, "--cni-conf-dir=" + c.Spec.Agent.CNIConfDirectory,
	}
	mounts := []mount{
		hostDirectory("run-openvswitch", "/run/openvswitch"),
		hostDirectory("run-ovn", "/run/ovn"),
		hostDirectory("etc-openvswitch", "/etc/openvswitch"),
		temporary(),
		hostDirectory("cni-bin", c.Spec.Agent.CNIBinDirectory),
		hostDirectory("cni-conf", c.Spec.Agent.CNIConfDirectory),
	}
	if c.Spec.DeletionPolicy == v1alpha1.DeletionDelete {
		args = append(args, "--data-dir="+c.Spec.Central.DataDirectory)
		mounts = append(mounts, hostDirectory("data", c.Spec.Central.DataDirectory))
	}
	template := c.template(program{
		app:           CleanUpName,
		component:     CleanUpName,
		priorityClass: nodeCritical,
		args:          args,
		health:        cleanUpHealthPort,
		resources:     resourcesOr(c.Spec.Agent.Resources, "100m", "128Mi"),
		security:      c.datapath(),
		logLevel:      c.Spec.Agent.LogLevel,
		grace:         45,
		tolerations:   tolerateAll(),
		mounts:        mounts,
	})
	template.Spec.AutomountServiceAccountToken = new(false)
	template.Spec.Containers[0].LivenessProbe = nil // it ends by itself when something is wrong
	stamp(&template)
	return &appsv1.DaemonSet{
		ObjectMeta: c.meta(CleanUpName, CleanUpName, CleanUpName),
		Spec: appsv1.DaemonSetSpec{
			Selector: selector(CleanUpName, CleanUpName),
			UpdateStrategy: appsv1.DaemonSetUpdateStrategy{
				Type:          appsv1.RollingUpdateDaemonSetStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: new(intstr.FromString("100%"))},
			},
			Template: template,
		},
	}
}
