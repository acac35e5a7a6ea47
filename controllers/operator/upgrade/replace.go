// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package upgrade replaces pods as package rollout plans it: it reads the input of the plan, holds Deployments back, and deletes the pods that may be
// replaced now.
package upgrade

import (
	"context"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/observed"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/controllers/operator/rollout"
	"github.com/kiln-net/kiln/internal/workload"
)

var podsReplaced = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "kiln_pods_replaced_total", Help: "Pods on nodes and of databases that were deleted so that new ones run the newest image and settings.",
}, []string{"component"})

func init() { metrics.Registry.MustRegister(podsReplaced) }

// Replacer deletes pods so that their workloads re-create them.
type Replacer struct {
	// Image of the operator.
	Image string
	// replaced are pods that were deleted and may still be in the cache.
	replaced map[types.UID]bool
}

// Replace deletes a pod and records it as deleted, because the cache may still contain it.
func (r *Replacer) Replace(ctx context.Context, objects *workload.Set, pod *corev1.Pod) error {
	if err := objects.Delete(ctx, pod); err != nil {
		return err
	}
	podsReplaced.WithLabelValues(pod.Labels[v1alpha1.ComponentLabel]).Inc()
	if r.replaced == nil {
		r.replaced = map[types.UID]bool{}
	}
	r.replaced[pod.UID] = true
	return nil
}

// forget drops records of pods that no longer exist.
func (r *Replacer) forget(pods []corev1.Pod) {
	there := map[types.UID]bool{}
	for i := range pods {
		there[pods[i].UID] = true
	}
	for uid := range r.replaced {
		if !there[uid] {
			delete(r.replaced, uid)
		}
	}
}

// ReplaceOnNodes deletes the pods on nodes that the plan selects; their DaemonSets re-create them.
func (r *Replacer) ReplaceOnNodes(ctx context.Context, seen *observed.Cluster, objects *workload.Set, plan rollout.Plan) error {
	for _, name := range render.OnNodes() {
		set, isSet := objects.Live(name).(*appsv1.DaemonSet)
		if !isSet || set.Status.ObservedGeneration < set.Generation {
			continue // it would re-create them from the older template
		}
		for _, pod := range seen.PodsOf(name) {
			if !slices.Contains(plan.Replace, pod.Name) {
				continue
			}
			if err := r.Replace(ctx, objects, pod); err != nil {
				return err
			}
		}
	}
	return nil
}

// HoldBack pauses a Deployment until the plan allows its replacement. A paused Deployment still replaces lost pods, from
// the older template.
func HoldBack(plan rollout.Plan, objects []render.Object, live client.Object) {
	before, isDeployment := live.(*appsv1.Deployment)
	if !isDeployment {
		return
	}
	for _, o := range objects {
		d, isDeployment := o.(*appsv1.Deployment)
		if !isDeployment || plan.Allows(d.Name) {
			continue
		}
		isCurrent := before.Spec.Template.Annotations[render.TemplateAnnotation] == d.Spec.Template.Annotations[render.TemplateAnnotation]
		d.Spec.Paused = before.Spec.Paused || !isCurrent
	}
}

// KeepPods makes DaemonSets keep their pods while an upgrade has pods of other components to replace.
func KeepPods(plan rollout.Plan, objects []render.Object) {
	for _, o := range objects {
		if set, isSet := o.(*appsv1.DaemonSet); isSet && plan.Stage != "" {
			set.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}
		}
	}
}
