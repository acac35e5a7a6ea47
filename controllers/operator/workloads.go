// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/kiln-net/kiln/controllers/operator/render"
)

// runAgents does not wait for agents: no phase needs them, and their component row reports their state.
func (r *Reconciler) runAgents(ctx context.Context, p *pass) error {
	return r.apply(ctx, p, render.AgentObjects(p.config))
}

// runPinger does not wait for the pods: the network does not need them. While an upgrade replaces pods, the pods of the pinger stay, because pods get
// no network from an agent that is replaced.
func (r *Reconciler) runPinger(ctx context.Context, p *pass) error {
	config := p.config
	config.Image = p.images[render.PingerName]
	objects := render.PingerObjects(config)
	p.keepPods(objects)
	return r.apply(ctx, p, objects)
}

// runSpeaker does not wait for the pods, which may not be able to reach their routers. While an upgrade replaces pods, those of the speaker stay, so
// that a node is not without its routes while it is without its network.
func (r *Reconciler) runSpeaker(ctx context.Context, p *pass) error {
	config := p.config
	config.Image = p.images[render.SpeakerName]
	objects := render.SpeakerObjects(config)
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

// running returns a phase that applies a workload, and ends when one of its pods is ready. Then the next phase can begin, and one
// broken node does not keep the other nodes from getting their network. While pods are replaced it does not wait: pods
// that are not ready may need a later phase.
func running(name string, objects func(render.Config) []render.Object) func(*Reconciler, context.Context, *pass) error {
	return func(r *Reconciler, ctx context.Context, p *pass) error {
		live, err := r.workload(ctx, p, name)
		if err != nil {
			return err
		}
		wanted := objects(p.config)
		p.holdBack(wanted, live)
		if err := r.apply(ctx, p, wanted); err != nil {
			return err
		}
		if progress := progressOf(p.live[name]); !progress.serves() && p.upgrade.Stage == "" {
			return &halt{reason: "WaitingForComponent", message: fmt.Sprintf("no pod of %s is ready yet", name)}
		}
		return nil
	}
}
