// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package render

// ImageObjects returns the DaemonSet that pulls the image. Its pods hold the image, so that the kubelet does not delete it before the
// node's turn. They have no rights, and no priority: a node that is full is no reason to evict other pods.
func ImageObjects(c Config) []Object {
	template := c.template(program{
		app:         ImageName,
		component:   ImageName,
		account:     AgentName, // for the imagePullSecrets that users add to it
		args:        []string{"hold-image"},
		resources:   requests("1m", "16Mi"),
		security:    confined(),
		grace:       1,
		tolerations: tolerateAll(),
	})
	template.Spec.AutomountServiceAccountToken = new(false)
	template.Spec.SecurityContext = nobody()
	container := &template.Spec.Containers[0]
	container.Ports, container.LivenessProbe, container.ReadinessProbe = nil, nil, nil // a container that runs has its image
	stamp(&template)
	template.Spec.Affinity = c.apartFromHeld()
	return []Object{c.daemonSet(ImageName, ImageName, rolling("100%"), template)}
}
