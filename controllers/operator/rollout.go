// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/controllers/operator/render"
)

// rollout is how far a workload is, whatever its kind.
type rollout struct {
	// desired, updated and ready pods.
	desired, updated, ready int32
	// observed: the numbers are about the newest template.
	observed bool
	image    string
}

// rolloutOf reads a StatefulSet, Deployment or DaemonSet. Of nil, a workload that is not there, it is zero.
func rolloutOf(o client.Object) rollout {
	switch w := o.(type) {
	case *appsv1.StatefulSet:
		return rollout{
			desired: *w.Spec.Replicas, updated: w.Status.UpdatedReplicas, ready: w.Status.ReadyReplicas,
			observed: w.Status.ObservedGeneration >= w.Generation, image: imageOf(w.Spec.Template),
		}
	case *appsv1.Deployment:
		return rollout{
			desired: *w.Spec.Replicas, updated: w.Status.UpdatedReplicas, ready: w.Status.ReadyReplicas,
			observed: w.Status.ObservedGeneration >= w.Generation, image: imageOf(w.Spec.Template),
		}
	case *appsv1.DaemonSet:
		return rollout{
			desired: w.Status.DesiredNumberScheduled, updated: w.Status.UpdatedNumberScheduled, ready: w.Status.NumberReady,
			observed: w.Status.ObservedGeneration >= w.Generation, image: imageOf(w.Spec.Template),
		}
	}
	return rollout{}
}

// updatedPods counts the pods that are as their template says. A workload's own count is by all of the template, and so by the nodes of other
// members and those that are held, which change without any need to replace a pod.
func updatedPods(workload client.Object, pods []*corev1.Pod) (count int32) {
	for _, pod := range pods {
		if pod.Annotations[render.TemplateAnnotation] == render.Template(workload).Annotations[render.TemplateAnnotation] {
			count++
		}
	}
	return count
}

func imageOf(t corev1.PodTemplateSpec) string { return t.Spec.Containers[0].Image }

// serves says whether there is a pod that does its work.
func (r rollout) serves() bool { return r.ready > 0 }

// complete says whether every pod is ready and of the newest template, not counting those on nodes that do not answer.
func (r rollout) complete(unreachable int32) bool {
	wanted := r.desired - unreachable
	return r.observed && r.serves() && r.updated >= wanted && r.ready >= wanted
}
