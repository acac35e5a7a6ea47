// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/controllers/operator/render"
)

// progress is how far a workload of any kind has replaced its pods.
type progress struct {
	// desired, updated and ready are numbers of pods.
	desired, updated, ready int32
	// observed is set if the numbers are for the current template.
	observed bool
	image    string
}

// progressOf reads a StatefulSet, Deployment or DaemonSet. For nil, a workload that does not exist, it returns the zero
// value.
func progressOf(o client.Object) progress {
	switch w := o.(type) {
	case *appsv1.StatefulSet:
		return progress{
			desired: *w.Spec.Replicas, updated: w.Status.UpdatedReplicas, ready: w.Status.ReadyReplicas,
			observed: w.Status.ObservedGeneration >= w.Generation, image: imageOf(w.Spec.Template),
		}
	case *appsv1.Deployment:
		return progress{
			desired: *w.Spec.Replicas, updated: w.Status.UpdatedReplicas, ready: w.Status.ReadyReplicas,
			observed: w.Status.ObservedGeneration >= w.Generation, image: imageOf(w.Spec.Template),
		}
	case *appsv1.DaemonSet:
		return progress{
			desired: w.Status.DesiredNumberScheduled, updated: w.Status.UpdatedNumberScheduled, ready: w.Status.NumberReady,
			observed: w.Status.ObservedGeneration >= w.Generation, image: imageOf(w.Spec.Template),
		}
	}
	return progress{}
}

// updatedPods counts the pods with the current template stamp. A workload's own count uses the whole template, which
// includes the affinity: changes of members and held nodes alter it without a need to replace pods.
func updatedPods(workload client.Object, pods []*corev1.Pod) (count int32) {
	for _, pod := range pods {
		if pod.Annotations[render.TemplateAnnotation] == render.Template(workload).Annotations[render.TemplateAnnotation] {
			count++
		}
	}
	return count
}

func imageOf(t corev1.PodTemplateSpec) string { return t.Spec.Containers[0].Image }

// serves reports whether a pod is ready.
func (r progress) serves() bool { return r.ready > 0 }

// serving reports whether every pod is ready, with the current template or an earlier one. Pods on nodes that do not answer
// are not counted.
func (r progress) serving(unreachable int32) bool {
	return r.observed && r.serves() && r.ready >= r.desired-unreachable
}

// complete reports whether every pod is ready and has the current template. Pods on nodes that do not answer are not
// counted.
func (r progress) complete(unreachable int32) bool {
	return r.serving(unreachable) && r.updated >= r.desired-unreachable
}
