// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/database"
	"github.com/kiln-net/kiln/controllers/operator/observed"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/controllers/operator/rollout"
	"github.com/kiln-net/kiln/controllers/operator/status"
	"github.com/kiln-net/kiln/controllers/operator/upgrade"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/serving/pki"
	"github.com/kiln-net/kiln/internal/workload"
)

// pass is one reconciliation. Below the inputs and the outputs, which all phases share, each field is the result of one phase.
type pass struct {
	// Report has the nodes and pods that the pass sees, and what its phases find.
	*status.Report
	// before is the OVNCluster as the pass read it. Phases change the status of the copy in cluster.
	before, cluster *v1alpha1.OVNCluster
	// objects are applied for the OVNCluster.
	objects *workload.Set

	// config is the spec, completed by the phases before the first one that applies objects.
	config render.Config
	// unfit nodes get no database member, because their addresses are in a network (validate).
	unfit []string
	// plan allows replacements of pods, and upgrade is its input. Both are valid once planned is set (plan replacements).
	upgrade rollout.Upgrade
	plan    rollout.Plan
	planned bool
	// authorities are the CAs by name (issue certificates).
	authorities map[string]*pki.Authority
	// archive lists the backups on the claim, if there is one (keep backups on a claim).
	archive database.Archive
}

// gather reads the inputs of a pass. It returns nil if there is nothing to do: the OVNCluster does not exist, or it is
// being deleted and has only finalizers of others.
func (r *Reconciler) gather(ctx context.Context, name string) (*pass, error) {
	cluster, err := k8s.Find[v1alpha1.OVNCluster](ctx, r, types.NamespacedName{Name: name})
	if err != nil {
		return nil, fmt.Errorf("get OVNCluster %s: %w", name, err)
	}
	if cluster == nil {
		return nil, nil
	}
	if !cluster.DeletionTimestamp.IsZero() {
		// A stale cache may still have the deleted object. The pass would then clean the nodes again, with no further
		// pass to stop that.
		if err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(cluster), cluster); err != nil {
			return nil, client.IgnoreNotFound(fmt.Errorf("get OVNCluster %s: %w", name, err))
		}
		if !slices.Contains(cluster.Finalizers, Finalizer) {
			return nil, nil
		}
	}
	seen, err := observed.Read(ctx, r, r.Namespace, r.Now())
	if err != nil {
		return nil, err
	}
	return &pass{
		Report: status.NewReport(seen), before: cluster, cluster: cluster.DeepCopy(),
		objects: r.applier.For(cluster, v1alpha1.GroupVersion.WithKind("OVNCluster")),
	}, nil
}

// removing reports whether the OVNCluster is being deleted.
func (p *pass) removing() bool { return !p.cluster.DeletionTimestamp.IsZero() }

// forUpgrade returns the input of package upgrade.
func (p *pass) forUpgrade() upgrade.Input {
	return upgrade.Input{OVNCluster: p.cluster, Config: p.config, Objects: p.objects, Report: p.Report}
}

// forDatabases returns the input of package database.
func (p *pass) forDatabases() *database.Input {
	return &database.Input{
		Input: p.forUpgrade(), Upgrade: p.upgrade, Plan: p.plan, Unfit: p.unfit, Authorities: p.authorities, Archive: p.archive,
	}
}
