// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package render

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

const (
	// BackupsSecret holds the certificate of that workload.
	BackupsSecret = "kiln-tls-backups"

	backupsPort      = 6654
	backupsDirectory = "/backups"
)

func hasBackups(spec *v1alpha1.OVNClusterSpec) bool {
	return spec.Central.Backup.PersistentVolumeClaim != nil
}

// BackupsObjects returns the Deployment whose only pod mounts the claim. Database members do not mount it: a claim whose
// storage is unavailable, or needs the network itself, must not prevent a member from starting.
func BackupsObjects(c Config) []Object {
	if !hasBackups(&c.Spec) {
		return nil
	}
	claim := c.Spec.Central.Backup.PersistentVolumeClaim
	template := c.template(program{
		app:           centralApp,
		component:     BackupsName,
		account:       centralAccount,
		priorityClass: clusterCritical,
		args:          []string{"backups", "--dir=" + backupsDirectory, "--tls-dir=" + tlsDirectory},
		health:        backupsPort + probePortOffset,
		ports:         []corev1.ContainerPort{port("admin", backupsPort)},
		resources:     firstSet(c.Spec.Central.Backup.Resources, requests("10m", "64Mi")),
		security:      confined(),
		grace:         30,
		tolerations:   Tolerations(c.Spec.Central.Placement),
		mounts: []mount{
			{name: "backups", path: backupsDirectory, source: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.ClaimName},
			}},
			tlsMount(BackupsSecret),
		},
	})
	template.Spec.SecurityContext = nobody()
	template.Spec.SecurityContext.FSGroupChangePolicy = new(corev1.FSGroupChangeOnRootMismatch)
	placed(&template, c.Spec.Central.Placement)
	stamp(&template)
	recreate := appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType} // a claim may allow one node only
	return []Object{c.deployment(centralApp, BackupsName, 1, recreate, template)}
}
