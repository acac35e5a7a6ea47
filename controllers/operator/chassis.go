// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/controllers/operator/rollout"
	"github.com/kiln-net/kiln/internal/supervisor/adminapi"
)

// removeChassis removes the chassis of deleted nodes from the southbound database. ovn-controller keeps its chassis when it stops, and no
// node may delete another's. Other nodes would keep their tunnels to a deleted node, and a new node with its address could not register:
// the addresses of encapsulations are unique. An error delays no other phase.
func (r *Reconciler) removeChassis(ctx context.Context, p *pass) error {
	status := p.database(render.Southbound)
	of := p.nodesOfChassis()
	if status.Leader == "" || status.Recovering() || r.nodesOfChassis == of {
		return nil
	}
	var deleted []string
	err := r.administer(p, render.Southbound, status.Leader, func(leader *adminapi.Client) error {
		registered, err := leader.Chassis(ctx)
		if err != nil {
			return err
		}
		if deleted, err = r.deletedNodes(ctx, p, registered); err != nil || len(deleted) == 0 {
			return err
		}
		return leader.RemoveChassis(ctx, deleted)
	})
	if errors.Is(err, adminapi.ErrUnsupported) {
		return nil // the leader has an older image
	}
	if err != nil {
		log.FromContext(ctx).Error(err, "cannot remove the chassis of deleted nodes", "nodes", deleted)
		p.wakeAt(p.now.Add(askRetry))
		return nil
	}
	if len(deleted) > 0 {
		r.Recorder.Eventf(p.cluster, nil, corev1.EventTypeNormal, "ChassisRemoved", "Reconcile", "%s",
			cut("the southbound database has no chassis anymore of the deleted nodes "+strings.Join(rollout.Few(deleted), ", "), maxNote))
	}
	r.nodesOfChassis = of
	return nil
}

// nodesOfChassis identifies the state in which chassis of deleted nodes are removed: a change of nodes needs another removal, and so does the end
// of an ovs-ovn pod of a deleted node, which may have registered its chassis again.
func (p *pass) nodesOfChassis() string {
	names := p.nodeNames()
	for _, pod := range p.podsOf(render.OpenVSwitch) {
		names.Insert("pod on " + madeFor(pod))
	}
	return fmt.Sprintf("%s: %s", p.cluster.Status.Southbound.ClusterID, strings.Join(sets.List(names), " "))
}

// nodeNames returns the names of all nodes.
func (p *pass) nodeNames() sets.Set[string] {
	names := sets.New[string]()
	for _, nodes := range [][]corev1.Node{p.nodes, p.foreign} {
		for i := range nodes {
			names.Insert(nodes[i].Name)
		}
	}
	return names
}

// deletedNodes returns those names that no node has. It verifies each with the API server, because the cache can lack a new node.
func (r *Reconciler) deletedNodes(ctx context.Context, p *pass, names []string) ([]string, error) {
	known := p.nodeNames()
	var deleted []string
	for _, name := range slices.Sorted(slices.Values(names)) {
		if known.Has(name) {
			continue
		}
		if len(validation.IsDNS1123Subdomain(name)) == 0 {
			err := r.APIReader.Get(ctx, client.ObjectKey{Name: name}, &corev1.Node{})
			if err == nil {
				continue
			}
			if !apierrors.IsNotFound(err) {
				return nil, fmt.Errorf("get node %s: %w", name, err)
			}
		}
		deleted = append(deleted, name)
	}
	return deleted, nil
}
