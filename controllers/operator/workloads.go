// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"

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

// runAgents does not wait for any: nothing comes after them, and their own rows tell how they are.
func (r *Reconciler) runAgents(ctx context.Context, p *pass) error {
	return r.apply(ctx, p, render.AgentObjects(p.config))
}

// runWorkload passes when one pod serves: what comes next can begin then, and one broken node must not keep the others from their
// network. While pods are replaced it always does: what does not serve may wait for what comes later.
func (r *Reconciler) runWorkload(ctx context.Context, p *pass, name string, objects []render.Object) error {
	live, err := r.workload(ctx, p, name)
	if err != nil {
		return err
	}
	p.holdBack(objects, live)
	if err := r.apply(ctx, p, objects); err != nil {
		return err
	}
	if rollout := rolloutOf(p.live[name]); !rollout.serves() && p.upgrade.stage == "" {
		return &halt{reason: "WaitingForComponent", message: fmt.Sprintf("no pod of %s is ready yet", name)}
	}
	return nil
}
