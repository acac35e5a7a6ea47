// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package database

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

	"github.com/kiln-net/kiln/controllers/operator/observed"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/controllers/operator/rollout"
	"github.com/kiln-net/kiln/controllers/operator/status"
	"github.com/kiln-net/kiln/supervisor/adminapi"
)

// RemoveChassis removes the chassis of deleted nodes from the southbound database. ovn-controller keeps its chassis when it stops, and no
// node may delete another's. Other nodes would keep their tunnels to a deleted node, and a new node with its address could not register:
// the addresses of encapsulations are unique. An error delays no other phase.
func (r *Runner) RemoveChassis(ctx context.Context, in *Input) error {
	p := r.of(in, render.Southbound)
	of := p.stateOfChassis()
	if p.record.Leader == "" || p.record.Recovering() || r.nodesOfChassis == of {
		return nil
	}
	var deleted []string
	err := p.administer(p.record.Leader, func(leader *adminapi.Client) error {
		registered, err := leader.Chassis(ctx)
		if err != nil {
			return err
		}
		if deleted, err = p.deletedNodes(ctx, registered); err != nil || len(deleted) == 0 {
			return err
		}
		return leader.RemoveChassis(ctx, deleted)
	})
	if errors.Is(err, adminapi.ErrUnsupported) {
		return nil // the leader has an older image
	}
	if err != nil {
		log.FromContext(ctx).Error(err, "cannot remove the chassis of deleted nodes", "nodes", deleted)
		p.Report.WakeAfter(askRetry)
		return nil
	}
	if len(deleted) > 0 {
		r.Recorder.Eventf(p.OVNCluster, nil, corev1.EventTypeNormal, "ChassisRemoved", "Reconcile", "%s",
			status.EventNote("the southbound database has no chassis anymore of the deleted nodes "+strings.Join(rollout.Few(deleted), ", ")))
	}
	r.nodesOfChassis = of
	return nil
}

// BeyondVXLAN returns how many tunnel keys of the southbound database VXLAN cannot carry.
func (r *Runner) BeyondVXLAN(ctx context.Context, in *Input) (beyond adminapi.BeyondVXLAN, err error) {
	p := r.of(in, render.Southbound)
	err = p.administer(p.record.Leader, func(leader *adminapi.Client) (err error) {
		beyond, err = leader.BeyondVXLAN(ctx)
		return err
	})
	return beyond, err
}

// stateOfChassis identifies the state in which chassis of deleted nodes are removed: a change of nodes needs another removal, and so does the end
// of an ovs-ovn pod of a deleted node, which may have registered its chassis again.
func (p *run) stateOfChassis() string {
	names := p.Report.NodeNames()
	for _, pod := range p.Report.PodsOf(render.OpenVSwitch) {
		names.Insert("pod on " + observed.MadeFor(pod))
	}
	return fmt.Sprintf("%s: %s", p.record.ClusterID, strings.Join(sets.List(names), " "))
}

// deletedNodes returns those names that no node has. It verifies each with the API server, because the cache can lack a new node.
func (p *run) deletedNodes(ctx context.Context, names []string) ([]string, error) {
	known := p.Report.NodeNames()
	var deleted []string
	for _, name := range slices.Sorted(slices.Values(names)) {
		if known.Has(name) {
			continue
		}
		if len(validation.IsDNS1123Subdomain(name)) == 0 {
			err := p.APIReader.Get(ctx, client.ObjectKey{Name: name}, &corev1.Node{})
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
