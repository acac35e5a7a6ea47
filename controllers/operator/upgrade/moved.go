// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"fmt"
	"slices"
	"strings"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/rollout"
)

// keepMoved stops a rollback of nodes whose only interface can be a port of a bridge. A version that cannot move addresses leaves the interface attached
// after the next reboot of the node, without its addresses on the bridge. The operator cannot see what another image can; its own image can.
func (in Input) keepMoved(plan *rollout.Plan, own string) {
	if !plan.Back || in.Config.Image == own || in.OVNCluster.Annotations[v1alpha1.AnnotationAllowRollback] != "" {
		return
	}
	var moved []string
	for i := range in.Report.Nodes {
		for key := range in.Report.Nodes[i].Labels {
			if prefix, name, _ := strings.Cut(key, "/"); name == kubeovnv1.ProviderMoved && strings.HasSuffix(prefix, kubeovnv1.ProviderKeySuffix) {
				moved = append(moved, in.Report.Nodes[i].Name)
				break
			}
		}
	}
	if len(moved) == 0 {
		return
	}
	slices.Sort(moved)
	plan.Replace, plan.Release, plan.Pull, plan.Stuck = nil, map[string]bool{}, false, true
	plan.Message = fmt.Sprintf("interfaces with addresses have moved to bridges of ProviderNetworks on nodes %s: set spec.nodeInterface of the "+
		"ProviderNetworks to Refuse before the rollback, or the nodes can lose their network at their next reboot. If image %s has this field: "+
		"kubectl annotate ovncluster default %s=true", strings.Join(rollout.Few(moved), ", "), in.Config.Image, v1alpha1.AnnotationAllowRollback)
}
