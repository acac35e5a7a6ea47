// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/kiln-net/kiln/controllers/operator/render"
)

func (r *Reconciler) runNorthd(ctx context.Context, p *pass) error {
	return r.runWorkload(ctx, p, render.NorthdName, render.NorthdObjects(p.config))
}

func (r *Reconciler) runOpenVSwitch(ctx context.Context, p *pass) error {
	return r.runWorkload(ctx, p, render.OpenVSwitch, render.OpenVSwitchObjects(p.config))
}

func (r *Reconciler) runController(ctx context.Context, p *pass) error {
	return r.runWorkload(ctx, p, render.ControllerName, render.ControllerObjects(p.config))
}

// runAgents does not wait for agents: no phase needs them, and their component row reports their state.
func (r *Reconciler) runAgents(ctx context.Context, p *pass) error {
	return r.apply(ctx, p, render.AgentObjects(p.config))
}

// runPinger does not wait for the pods: the network does not need them. While an upgrade replaces pods, the pods of the pinger stay, because pods get
// no network from an agent that is replaced.
func (r *Reconciler) runPinger(ctx context.Context, p *pass) error {
	objects := render.PingerObjects(p.config)
	p.keepPods(objects)
	return r.apply(ctx, p, objects)
}

// runSpeaker does not wait for the pods, which may not be able to reach their routers. While an upgrade replaces pods, those of the speaker stay, so
// that a node is not without its routes while it is without its network.
func (r *Reconciler) runSpeaker(ctx context.Context, p *pass) error {
	objects := render.SpeakerObjects(p.config)
	p.keepPods(objects)
	return r.apply(ctx, p, objects)
}

// keepPods makes DaemonSets keep their pods while an upgrade has pods of other components to replace.
func (p *pass) keepPods(objects []render.Object) {
	for _, o := range objects {
		if set, isSet := o.(*appsv1.DaemonSet); isSet && p.upgrade.Stage != "" {
			set.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}
		}
	}
}

// runWorkload applies a workload and returns nil when one of its pods is ready. Then the next phase can begin, and one
// broken node does not keep the other nodes from getting their network. While pods are replaced it does not wait: pods
// that are not ready may need a later phase.
func (r *Reconciler) runWorkload(ctx context.Context, p *pass, name string, objects []render.Object) error {
	live, err := r.workload(ctx, p, name)
	if err != nil {
		return err
	}
	p.holdBack(objects, live)
	if err := r.apply(ctx, p, objects); err != nil {
		return err
	}
	if progress := progressOf(p.live[name]); !progress.serves() && p.upgrade.Stage == "" {
		return &halt{reason: "WaitingForComponent", message: fmt.Sprintf("no pod of %s is ready yet", name)}
	}
	return nil
}
