// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/observed"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/controllers/operator/status"
	"github.com/kiln-net/kiln/supervisor/adminapi"
)

// reasonTunnels is the reason of the condition Progressing when a step of a change of tunnelType is recorded.
const reasonTunnels = "ChangingTunnelType"

// recheckVXLAN is the delay until the operator counts tunnel keys again. No watch reports them.
const recheckVXLAN = time.Minute

// offerTunnels sets the encapsulations that nodes offer from their record in the status. A cluster without a record has the one of its nodes.
func (r *Reconciler) offerTunnels(ctx context.Context, p *pass) error {
	network, offered := &p.config.Spec.Network, &p.cluster.Status.TunnelTypes
	if len(*offered) == 0 {
		live, err := observed.Workload(ctx, p.objects, r.Namespace, render.OpenVSwitch)
		if err != nil {
			return err
		}
		used := network.TunnelType
		if set, is := live.(*appsv1.DaemonSet); is {
			used = cmp.Or(render.TunnelType(set), used)
		}
		*offered = []v1alpha1.TunnelType{used}
	}
	p.config.TunnelTypes = *offered
	if !slices.Contains(*offered, network.TunnelType) { // changeTunnels has not recorded it yet
		network.TunnelType = (*offered)[0]
	}
	return nil
}

// nextTunnels returns the encapsulations that nodes are to offer next, while they offer one or two. A change has two steps, so that any two
// nodes have one in common: all nodes offer both, then all nodes offer the wanted one. nodesDone is set when every node that answers
// offers the given ones and serves. Nodes have offered the first of two all the time, so that a change can be undone at once.
func nextTunnels(offered []v1alpha1.TunnelType, want v1alpha1.TunnelType, nodesDone bool) []v1alpha1.TunnelType {
	switch {
	case !slices.Contains(offered, want):
		return []v1alpha1.TunnelType{offered[0], want}
	case len(offered) > 1 && (nodesDone || want == offered[0]):
		return []v1alpha1.TunnelType{want}
	}
	return offered
}

// changeTunnels records the next step of a change of tunnelType, and ends the pass so that the record is written before the step.
func (r *Reconciler) changeTunnels(ctx context.Context, p *pass) error {
	offered, want := p.cluster.Status.TunnelTypes, p.cluster.Spec.Network.TunnelType
	nodesDone := !p.plan.Back && p.upgrade.Done(v1alpha1.StageNodes)
	next := nextTunnels(offered, want, nodesDone)
	if slices.Equal(next, offered) {
		return nil
	}
	if want == v1alpha1.TunnelVXLAN && !slices.Contains(offered, want) {
		if why := r.vxlanProblem(ctx, p); why != "" {
			p.Note(render.OpenVSwitch, status.Note{Stuck: true, Aside: true, Text: "network.tunnelType vxlan is not applied: " + why})
			p.WakeAfter(recheckVXLAN)
			return nil
		}
	}
	p.cluster.Status.TunnelTypes = next
	return &status.Halt{Reason: reasonTunnels, Message: "nodes change to tunnels of " + strings.Trim(fmt.Sprint(next), "[]")}
}

// vxlanProblem returns why nodes cannot use VXLAN now; empty if they can. ovn-northd does not change keys that it has assigned.
func (r *Reconciler) vxlanProblem(ctx context.Context, p *pass) string {
	beyond, err := r.databases.BeyondVXLAN(ctx, p.forDatabases())
	switch {
	case errors.Is(err, adminapi.ErrUnsupported):
		return "the southbound database runs an image that cannot count tunnel keys: upgrade it first"
	case err != nil:
		return "the southbound database does not report its tunnel keys: " + err.Error()
	case beyond != adminapi.BeyondVXLAN{}:
		return fmt.Sprintf("%d subnets and VPCs have tunnel keys above %d, and %d ports have keys above %d, which VXLAN cannot carry: "+
			"set tunnelType back, or, if there are fewer of them, assign lower keys by a recovery with southbound: Rebuild",
			beyond.Datapaths, adminapi.MaxVXLANDatapath, beyond.Ports, adminapi.MaxVXLANPort)
	}
	return ""
}
