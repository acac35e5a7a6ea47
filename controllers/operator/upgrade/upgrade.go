// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package upgrade replaces pods as package rollout plans it: it reads the input of the plan, holds Deployments back, and deletes the pods that may be
// replaced now.
package upgrade

import (
	"context"
	"fmt"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/observed"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/controllers/operator/rollout"
	"github.com/kiln-net/kiln/controllers/operator/status"
	"github.com/kiln-net/kiln/internal/workload"
)

var podsReplaced = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "kiln_pods_replaced_total", Help: "Pods on nodes and of databases that were deleted so that new ones run the newest image and settings.",
}, []string{"component"})

func init() { metrics.Registry.MustRegister(podsReplaced) }

// Replacer deletes pods so that their workloads re-create them.
type Replacer struct {
	// replaced are pods that were deleted and may still be in the cache.
	replaced map[types.UID]bool
}

// Input is what a plan depends on.
type Input struct {
	// OVNCluster has the record of images in its status.
	OVNCluster *v1alpha1.OVNCluster
	Config     render.Config
	Objects    *workload.Set
	Report     *status.Report
}

// Plan decides which pods may be replaced in this pass. It first records a new image and ends the pass for that:
// only this record determines which of two images is newer.
func (r *Replacer) Plan(ctx context.Context, in Input) (rollout.Upgrade, rollout.Plan, error) {
	images := &in.OVNCluster.Status.Upgrade.Images
	if !slices.Contains(*images, in.Config.Image) {
		*images = rollout.RecordImage(*images, in.Config.Image)
		return rollout.Upgrade{}, rollout.Plan{}, &status.Halt{Reason: "RecordingImage", Message: fmt.Sprintf("recording the new image %s", in.Config.Image)}
	}
	u, err := r.observe(ctx, in)
	if err != nil {
		return rollout.Upgrade{}, rollout.Plan{}, err
	}
	return u, u.Plan(), nil
}

// observe reads the input of the plan.
func (r *Replacer) observe(ctx context.Context, in Input) (rollout.Upgrade, error) {
	r.forget(in.Report.Pods)
	spec := in.Config.Spec.Upgrade
	u := rollout.Upgrade{Mode: spec.Mode, Sets: map[v1alpha1.UpgradeStage][]rollout.Set{}}
	templates := stamps(in.Config)
	puller := observePuller(in)
	holds := map[string]bool{}
	onNodes := map[string]map[string]rollout.Pod{}
	for _, name := range render.OnNodes() {
		onNodes[name] = map[string]rollout.Pod{}
		for _, pod := range in.Report.PodsOf(name) {
			seen := r.See(in, name, templates[name], pod)
			if (seen.Current || pod.Spec.Containers[0].Image == in.Config.Image) && started(pod) {
				holds[observed.MadeFor(pod)] = true
			}
			if before := onNodes[name][observed.MadeFor(pod)]; !before.Present {
				onNodes[name][observed.MadeFor(pod)] = seen
			}
		}
	}
	canaries := labels.SelectorFromSet(spec.CanaryNodeSelector)
	for i := range in.Report.Nodes {
		if n := &in.Report.Nodes[i]; observed.Answers(n) && !slices.Contains(in.Config.HeldNodes, n.Name) {
			u.Nodes = append(u.Nodes, rollout.Node{
				HoldsImage: holds[n.Name], Pulled: puller[n.Name].pulled, Refused: puller[n.Name].refused, PullTrouble: puller[n.Name].trouble,
				Name: n.Name, Canary: len(spec.CanaryNodeSelector) > 0 && canaries.Matches(labels.Set(n.Labels)),
				OpenVSwitch: onNodes[render.OpenVSwitch][n.Name], CNI: onNodes[render.AgentName][n.Name],
			})
		}
	}
	u.MaxUnavailable = maxUnavailable(spec.MaxUnavailable, len(u.Nodes))
	for _, o := range render.Operands {
		if o.Stage == "" || o.Stage == v1alpha1.StageNodes {
			continue
		}
		set, err := r.observeSet(ctx, in, o.Name, templates[o.Name])
		if err != nil {
			return u, err
		}
		u.Sets[o.Stage] = append(u.Sets[o.Stage], set)
	}
	return u, nil
}

// stamps returns the stamp of the pod template of every operand that upgrades replace, by name.
func stamps(c render.Config) map[string]string {
	all := map[string]string{}
	for _, operand := range render.Operands {
		if operand.Stage == "" {
			continue
		}
		for _, o := range operand.Objects(c) {
			if t := workload.Template(o); t != nil {
				all[o.GetName()] = t.Annotations[render.TemplateAnnotation]
			}
		}
	}
	return all
}

// pull is the result of ImageName's pod on a node.
type pull struct {
	pulled, refused bool
	trouble         string
}

// observePuller returns the results of ImageName's pods for the current image, by node. A pull may take long, so only a container's state
// is a trouble.
func observePuller(in Input) map[string]pull {
	template := workload.Template(render.ImageObjects(in.Config)[0]).Annotations[render.TemplateAnnotation]
	out := map[string]pull{}
	for _, pod := range in.Report.PodsOf(render.ImageName) {
		if pod.Annotations[render.TemplateAnnotation] != template || !pod.DeletionTimestamp.IsZero() {
			continue
		}
		scheduled := observed.Condition(pod, corev1.PodScheduled)
		result := pull{
			pulled:  started(pod),
			refused: pod.Status.Phase == corev1.PodFailed || scheduled != nil && scheduled.Status == corev1.ConditionFalse,
		}
		for _, c := range pod.Status.ContainerStatuses {
			if why := observed.ContainerTrouble(c); why != "" && !result.pulled && !result.refused {
				result.trouble = fmt.Sprintf("node %s: %s", observed.MadeFor(pod), why)
			}
		}
		out[observed.MadeFor(pod)] = result
	}
	return out
}

// started reports whether a container of the pod was created, so that the node has its image.
func started(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.ImageID != "" })
}

func maxUnavailable(given *intstr.IntOrString, nodes int) int {
	if given == nil {
		return 1
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(given, nodes, true)
	if err != nil {
		return 1 // the API rejects this
	}
	return max(1, n)
}

func (r *Replacer) observeSet(ctx context.Context, in Input, name, template string) (rollout.Set, error) {
	set := rollout.Set{Component: name}
	live, err := observed.Workload(ctx, in.Objects, in.Config.Namespace, name)
	if live == nil || err != nil {
		return set, err
	}
	set.Want = int(workload.ProgressOf(live).Desired)
	deployment, isDeployment := live.(*appsv1.Deployment)
	if isDeployment {
		set.Unfinished = deployment.Spec.Paused || deployment.Spec.Template.Annotations[render.TemplateAnnotation] != template
	}
	for _, pod := range in.Report.PodsOf(name) {
		seen := r.See(in, name, template, pod)
		switch c := observed.Condition(pod, corev1.PodScheduled); {
		case isDeployment && seen.Silent: // the Deployment replaces it
		case isDeployment && c != nil && c.Status == corev1.ConditionFalse && set.Want > 1: // there are fewer nodes than replicas
			set.Want--
		default:
			set.Pods = append(set.Pods, seen)
		}
	}
	return set, nil
}

// See returns the properties of a pod that plans depend on.
func (r *Replacer) See(in Input, component, template string, pod *corev1.Pod) rollout.Pod {
	return rollout.Pod{
		Name:    pod.Name,
		Silent:  observed.Silent(in.Report.Node(observed.MadeFor(pod))),
		Present: pod.DeletionTimestamp.IsZero() && !r.replaced[pod.UID],
		Current: pod.Annotations[render.TemplateAnnotation] == template,
		Newer:   rollout.NewerImage(in.OVNCluster.Status.Upgrade.Images, in.Config.Image, pod.Spec.Containers[0].Image),
		Ready:   observed.Ready(pod),
		Dead:    dead(pod),
		Trouble: in.Report.Trouble(component, pod),
	}
}

// dead reports whether none of the pod's containers runs.
func dead(pod *corev1.Pod) bool {
	return !slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.State.Running != nil }) && !observed.Ready(pod)
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
