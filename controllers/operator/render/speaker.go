// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package render

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

const (
	speakerHealthPort  = 10667
	passwordsDirectory = "/etc/kiln/passwords"
	// netBindService allows listening on port 179.
	netBindService = corev1.Capability("NET_BIND_SERVICE")
	// passwordMode lets the user root or the group of the volume (fsGroup) read the passwords.
	passwordMode = int32(0o440)
)

// hasSpeaker is Operand.Runs of the speaker.
func hasSpeaker(spec *v1alpha1.OVNClusterSpec) bool { return spec.Speaker != nil }

// SpeakerObjects returns the DaemonSet of kube-ovn-speaker; nil if there is no spec.speaker. Its pods connect from the addresses of their nodes.
func SpeakerObjects(c Config) []Object {
	speaker := c.Spec.Speaker
	if speaker == nil {
		return nil
	}
	security := confined()
	args := []string{"speaker", "--passwords=" + passwordsDirectory}
	if listens(speaker) {
		security.Capabilities.Add = []corev1.Capability{netBindService}
		args = append(args, "--listen")
	}
	template := c.template(program{
		app:           SpeakerName,
		component:     SpeakerName,
		account:       SpeakerName,
		priorityClass: nodeCritical,
		args:          args,
		health:        speakerHealthPort,
		resources:     firstSet(speaker.Resources, requests("20m", "64Mi")),
		security:      security,
		grace:         10,
		mounts:        passwords(speaker),
		tolerations:   tolerateAll(),
	})
	if listens(speaker) {
		// Without root the capability would have no effect: Kubernetes has no ambient capabilities.
		template.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: new(int64(0))}
	} else {
		template.Spec.SecurityContext = nobody()
	}
	maps.Copy(template.Spec.NodeSelector, speaker.Selector())
	stamp(&template)
	template.Spec.Affinity = c.apartFromHeld()
	return []Object{c.daemonSet(SpeakerName, SpeakerName, rolling("1"), template)}
}

// listens reports whether a router connects to the nodes.
func listens(s *v1alpha1.Speaker) bool {
	return slices.ContainsFunc(s.Peers, func(p v1alpha1.SpeakerPeer) bool { return p.Connection == v1alpha1.ConnectionPassive })
}

// passwords returns one volume with the keys of all Secrets, as SECRET/KEY. A Secret that does not exist does not prevent the pod: only its peers have
// no session. The speaker has no right to read Secrets.
func passwords(s *v1alpha1.Speaker) []mount {
	keys := map[string][]string{}
	for _, p := range s.Peers {
		if p.Password == nil {
			continue
		}
		key := cmp.Or(p.Password.Key, v1alpha1.DefaultPasswordKey)
		if !slices.Contains(keys[p.Password.Name], key) {
			keys[p.Password.Name] = append(keys[p.Password.Name], key)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	volume := &corev1.ProjectedVolumeSource{DefaultMode: new(passwordMode)}
	for _, name := range slices.Sorted(maps.Keys(keys)) {
		slices.Sort(keys[name])
		projection := &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: name}, Optional: new(true)}
		for _, key := range keys[name] {
			projection.Items = append(projection.Items, corev1.KeyToPath{Key: key, Path: name + "/" + key})
		}
		volume.Sources = append(volume.Sources, corev1.VolumeProjection{Secret: projection})
	}
	return []mount{{name: "passwords", path: passwordsDirectory, readOnly: true, source: corev1.VolumeSource{Projected: volume}}}
}
