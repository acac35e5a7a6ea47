// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/controllers/operator/rollout"
)

// planUpgrade decides which pods may be replaced in this pass. It first records a new image and ends the pass for that:
// only this record determines which of two images is newer.
func (r *Reconciler) planUpgrade(ctx context.Context, p *pass) error {
	images := &p.cluster.Status.Upgrade.Images
	if !slices.Contains(*images, p.config.Image) {
		*images = rollout.RecordImage(*images, p.config.Image)
		return &halt{reason: "RecordingImage", message: fmt.Sprintf("recording the new image %s", p.config.Image)}
	}
	u, err := r.observeUpgrade(ctx, p)
	if err != nil {
		return err
	}
	p.observed, p.upgrade, p.planned = u, u.Plan(), true
	p.keepMoved(r.Image)
	return nil
}

// observeUpgrade reads the input of the plan.
func (r *Reconciler) observeUpgrade(ctx context.Context, p *pass) (rollout.Upgrade, error) {
	r.forgetReplaced(p)
	spec := p.config.Spec.Upgrade
	u := rollout.Upgrade{Mode: spec.Mode, Sets: map[v1alpha1.UpgradeStage][]rollout.Set{}}
	templates := render.Templates(p.config)
	puller := r.observePuller(p)
	holds := map[string]bool{}
	onNodes := map[string]map[string]rollout.Pod{}
	for _, name := range render.OnNodes() {
		onNodes[name] = map[string]rollout.Pod{}
		for _, pod := range p.podsOf(name) {
			seen := r.see(p, name, templates[name], pod)
			if (seen.Current || pod.Spec.Containers[0].Image == p.config.Image) && started(pod) {
				holds[madeFor(pod)] = true
			}
			if before := onNodes[name][madeFor(pod)]; !before.Present {
				onNodes[name][madeFor(pod)] = seen
			}
		}
	}
	canaries := labels.SelectorFromSet(spec.CanaryNodeSelector)
	for i := range p.nodes {
		if n := &p.nodes[i]; answers(n) && !slices.Contains(p.config.HeldNodes, n.Name) {
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
		set, err := r.observeSet(ctx, p, o.Name, templates[o.Name])
		if err != nil {
			return u, err
		}
		u.Sets[o.Stage] = append(u.Sets[o.Stage], set)
	}
	return u, nil
}

// pull is the result of ImageName's pod on a node.
type pull struct {
	pulled, refused bool
	trouble         string
}

// observePuller returns the results of ImageName's pods for the current image, by node. A pull may take long, so only a container's state
// is a trouble.
func (r *Reconciler) observePuller(p *pass) map[string]pull {
	template := render.Template(render.ImageObjects(p.config)[0]).Annotations[render.TemplateAnnotation]
	out := map[string]pull{}
	for _, pod := range p.podsOf(render.ImageName) {
		if pod.Annotations[render.TemplateAnnotation] != template || !pod.DeletionTimestamp.IsZero() {
			continue
		}
		scheduled := condition(pod, corev1.PodScheduled)
		result := pull{
			pulled:  started(pod),
			refused: pod.Status.Phase == corev1.PodFailed || scheduled != nil && scheduled.Status == corev1.ConditionFalse,
		}
		for _, c := range pod.Status.ContainerStatuses {
			if why := containerTrouble(c); why != "" && !result.pulled && !result.refused {
				result.trouble = fmt.Sprintf("node %s: %s", madeFor(pod), why)
			}
		}
		out[madeFor(pod)] = result
	}
	return out
}

// started reports whether a container of the pod was created, so that the node has its image.
func started(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.ImageID != "" })
}

// pullImage makes nodes pull the image before the first of their pods is replaced. Afterwards prune deletes the DaemonSet.
func (r *Reconciler) pullImage(ctx context.Context, p *pass) error {
	if !p.upgrade.Pull {
		return nil
	}
	return r.apply(ctx, p, render.ImageObjects(p.config))
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

func (r *Reconciler) observeSet(ctx context.Context, p *pass, name, template string) (rollout.Set, error) {
	set := rollout.Set{Component: name}
	live, err := r.workload(ctx, p, name)
	if live == nil || err != nil {
		return set, err
	}
	set.Want = int(progressOf(live).desired)
	deployment, isDeployment := live.(*appsv1.Deployment)
	if isDeployment {
		set.Unfinished = deployment.Spec.Paused || deployment.Spec.Template.Annotations[render.TemplateAnnotation] != template
	}
	for _, pod := range p.podsOf(name) {
		seen := r.see(p, name, template, pod)
		switch c := condition(pod, corev1.PodScheduled); {
		case isDeployment && seen.Silent: // the Deployment replaces it
		case isDeployment && c != nil && c.Status == corev1.ConditionFalse && set.Want > 1: // there are fewer nodes than replicas
			set.Want--
		default:
			set.Pods = append(set.Pods, seen)
		}
	}
	return set, nil
}

// see returns the properties of a pod that plans depend on.
func (r *Reconciler) see(p *pass, component, template string, pod *corev1.Pod) rollout.Pod {
	return rollout.Pod{
		Name:    pod.Name,
		Silent:  silent(p.node(madeFor(pod))),
		Present: pod.DeletionTimestamp.IsZero() && !r.replaced[pod.UID],
		Current: pod.Annotations[render.TemplateAnnotation] == template,
		Newer:   rollout.NewerImage(p.cluster.Status.Upgrade.Images, p.config.Image, pod.Spec.Containers[0].Image),
		Ready:   ready(pod),
		Dead:    dead(pod),
		Trouble: p.trouble(component, pod),
	}
}

// dead reports whether none of the pod's containers runs.
func dead(pod *corev1.Pod) bool {
	return !slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.State.Running != nil }) && !ready(pod)
}

// replacePods deletes the pods on nodes that the plan selects; their DaemonSets re-create them.
func (r *Reconciler) replacePods(ctx context.Context, p *pass) error {
	for _, name := range render.OnNodes() {
		set, isSet := p.live[name].(*appsv1.DaemonSet)
		if !isSet || set.Status.ObservedGeneration < set.Generation {
			continue // it would re-create them from the older template
		}
		for _, pod := range p.podsOf(name) {
			if !slices.Contains(p.upgrade.Replace, pod.Name) {
				continue
			}
			if err := r.replace(ctx, pod); err != nil {
				return err
			}
		}
	}
	return nil
}

// replace deletes a pod and records it as deleted, because the cache may still contain it.
func (r *Reconciler) replace(ctx context.Context, pod *corev1.Pod) error {
	if err := r.remove(ctx, pod, "Pod"); err != nil {
		return err
	}
	podsReplaced.WithLabelValues(pod.Labels[v1alpha1.ComponentLabel]).Inc()
	if r.replaced == nil {
		r.replaced = map[types.UID]bool{}
	}
	r.replaced[pod.UID] = true
	return nil
}

// forgetReplaced drops records of pods that no longer exist.
func (r *Reconciler) forgetReplaced(p *pass) {
	there := map[types.UID]bool{}
	for i := range p.pods {
		there[p.pods[i].UID] = true
	}
	for uid := range r.replaced {
		if !there[uid] {
			delete(r.replaced, uid)
		}
	}
}

// holdBack pauses a Deployment until the plan allows its replacement. A paused Deployment still replaces lost pods, from
// the older template.
func (p *pass) holdBack(objects []render.Object, live client.Object) {
	before, isDeployment := live.(*appsv1.Deployment)
	if !isDeployment {
		return
	}
	for _, o := range objects {
		d, isDeployment := o.(*appsv1.Deployment)
		if !isDeployment || p.upgrade.Allows(d.Name) {
			continue
		}
		isCurrent := before.Spec.Template.Annotations[render.TemplateAnnotation] == d.Spec.Template.Annotations[render.TemplateAnnotation]
		d.Spec.Paused = before.Spec.Paused || !isCurrent
	}
}

// upgradeStatus writes the plan to the status.
func (p *pass) upgradeStatus(complete bool) {
	if !p.planned {
		return // the status of an earlier pass stays
	}
	status := &p.cluster.Status.Upgrade
	status.Stage, status.Direction, status.Message = p.upgrade.Stage, p.upgrade.Direction(), p.upgrade.Message
	if complete && p.upgrade.Stage == "" {
		status.Images = rollout.SettleImages(status.Images, p.config.Image)
	}
}

// upgradeChanged reports whether the record of images changed, which triggers the next pass.
func upgradeChanged(before, after v1alpha1.UpgradeStatus) bool {
	return !slices.Equal(before.Images, after.Images)
}
