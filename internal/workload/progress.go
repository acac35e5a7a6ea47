// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Progress is how far a workload of any kind has replaced its pods.
type Progress struct {
	// Desired, Updated and Ready are numbers of pods.
	Desired, Updated, Ready int32
	// Observed is set if the numbers are for the current template.
	Observed bool
	// Image of the first container.
	Image string
}

// ProgressOf reads a StatefulSet, Deployment or DaemonSet. For nil, a workload that does not exist, it returns the zero
// value.
func ProgressOf(o client.Object) Progress {
	switch w := o.(type) {
	case *appsv1.StatefulSet:
		return Progress{
			Desired: *w.Spec.Replicas, Updated: w.Status.UpdatedReplicas, Ready: w.Status.ReadyReplicas,
			Observed: w.Status.ObservedGeneration >= w.Generation, Image: w.Spec.Template.Spec.Containers[0].Image,
		}
	case *appsv1.Deployment:
		return Progress{
			Desired: *w.Spec.Replicas, Updated: w.Status.UpdatedReplicas, Ready: w.Status.ReadyReplicas,
			Observed: w.Status.ObservedGeneration >= w.Generation, Image: w.Spec.Template.Spec.Containers[0].Image,
		}
	case *appsv1.DaemonSet:
		return Progress{
			Desired: w.Status.DesiredNumberScheduled, Updated: w.Status.UpdatedNumberScheduled, Ready: w.Status.NumberReady,
			Observed: w.Status.ObservedGeneration >= w.Generation, Image: w.Spec.Template.Spec.Containers[0].Image,
		}
	}
	return Progress{}
}

// Serves reports whether a pod is ready.
func (p Progress) Serves() bool { return p.Ready > 0 }

// Serving reports whether every pod is ready, with the current template or an earlier one. Pods on nodes that do not answer
// are not counted.
func (p Progress) Serving(unreachable int32) bool {
	return p.Observed && p.Serves() && p.Ready >= p.Desired-unreachable
}

// Complete reports whether every pod is ready and has the current template. Pods on nodes that do not answer are not
// counted.
func (p Progress) Complete(unreachable int32) bool {
	return p.Serving(unreachable) && p.Updated >= p.Desired-unreachable
}

// Template returns the pod template of a workload, or nil for any other object.
func Template(o Object) *corev1.PodTemplateSpec {
	switch w := o.(type) {
	case *appsv1.StatefulSet:
		return &w.Spec.Template
	case *appsv1.Deployment:
		return &w.Spec.Template
	case *appsv1.DaemonSet:
		return &w.Spec.Template
	}
	return nil
}
