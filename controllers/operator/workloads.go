// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"

	"github.com/kiln-net/kiln/controllers/operator/database"
	"github.com/kiln-net/kiln/controllers/operator/observed"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/controllers/operator/status"
	"github.com/kiln-net/kiln/controllers/operator/upgrade"
	"github.com/kiln-net/kiln/internal/workload"
)

func (r *Reconciler) placeDatabases(_ context.Context, p *pass) (err error) {
	p.config.Members, err = database.Place(p.forDatabases())
	return err
}

func (r *Reconciler) chooseDirectory(ctx context.Context, p *pass) (err error) {
	p.config.Spec.Central.DataDirectory, p.config.PreviousDataDirectory, err = database.ChooseDirectory(ctx, p.forDatabases())
	return err
}

func (r *Reconciler) runBackups(ctx context.Context, p *pass) (err error) {
	p.archive, err = r.databases.RunBackups(ctx, p.forDatabases())
	return err
}

func (r *Reconciler) runDatabases(ctx context.Context, p *pass) error {
	return r.databases.Run(ctx, p.forDatabases())
}

func (r *Reconciler) removeChassis(ctx context.Context, p *pass) error {
	return r.databases.RemoveChassis(ctx, p.forDatabases())
}

func (r *Reconciler) finishMove(_ context.Context, p *pass) error {
	return database.FinishMove(p.forDatabases())
}

// runAgents does not wait for agents: no phase needs them, and their component row reports their state.
func (r *Reconciler) runAgents(ctx context.Context, p *pass) error {
	return p.objects.Apply(ctx, render.AgentObjects(p.config)...)
}

// runPinger does not wait for the pods: the network does not need them. While an upgrade replaces pods, the pods of the pinger stay, because pods get
// no network from an agent that is replaced.
func (r *Reconciler) runPinger(ctx context.Context, p *pass) error {
	objects := render.PingerObjects(p.config)
	upgrade.KeepPods(p.plan, objects)
	return p.objects.Apply(ctx, objects...)
}

// runSpeaker does not wait for the pods, which may not be able to reach their routers. While an upgrade replaces pods, those of the speaker stay, so
// that a node is not without its routes while it is without its network.
func (r *Reconciler) runSpeaker(ctx context.Context, p *pass) error {
	objects := render.SpeakerObjects(p.config)
	upgrade.KeepPods(p.plan, objects)
	return p.objects.Apply(ctx, objects...)
}

// planUpgrade decides which pods may be replaced in this pass.
func (r *Reconciler) planUpgrade(ctx context.Context, p *pass) (err error) {
	p.upgrade, p.plan, err = r.upgrades.Plan(ctx, p.forUpgrade())
	p.planned = err == nil
	return err
}

// pullImage makes nodes pull the image before the first of their pods is replaced. Afterwards prune deletes the DaemonSet.
func (r *Reconciler) pullImage(ctx context.Context, p *pass) error {
	if !p.plan.Pull {
		return nil
	}
	return p.objects.Apply(ctx, render.ImageObjects(p.config)...)
}

// replacePods deletes the pods on nodes that the plan selects.
func (r *Reconciler) replacePods(ctx context.Context, p *pass) error {
	return r.upgrades.ReplaceOnNodes(ctx, p.Cluster, p.objects, p.plan)
}

// running returns a phase that applies a workload, and ends when one of its pods is ready. Then the next phase can begin, and one
// broken node does not keep the other nodes from getting their network. While pods are replaced it does not wait: pods
// that are not ready may need a later phase.
func running(name string, objects func(render.Config) []render.Object) func(*Reconciler, context.Context, *pass) error {
	return func(r *Reconciler, ctx context.Context, p *pass) error {
		live, err := observed.Workload(ctx, p.objects, r.Namespace, name)
		if err != nil {
			return err
		}
		wanted := objects(p.config)
		upgrade.HoldBack(p.plan, wanted, live)
		if err := p.objects.Apply(ctx, wanted...); err != nil {
			return err
		}
		if progress := workload.ProgressOf(p.objects.Live(name)); !progress.Serves() && p.plan.Stage == "" {
			return &status.Halt{Reason: "WaitingForComponent", Message: fmt.Sprintf("no pod of %s is ready yet", name)}
		}
		return nil
	}
}
