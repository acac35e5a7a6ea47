// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

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
func (p *pass) keepMoved(own string) {
	if !p.upgrade.Back || p.config.Image == own || p.cluster.Annotations[v1alpha1.AnnotationAllowRollback] != "" {
		return
	}
	var moved []string
	for i := range p.nodes {
		for key := range p.nodes[i].Labels {
			if prefix, name, _ := strings.Cut(key, "/"); name == kubeovnv1.ProviderMoved && strings.HasSuffix(prefix, kubeovnv1.ProviderKeySuffix) {
				moved = append(moved, p.nodes[i].Name)
				break
			}
		}
	}
	if len(moved) == 0 {
		return
	}
	slices.Sort(moved)
	p.upgrade.Replace, p.upgrade.Release, p.upgrade.Pull, p.upgrade.Stuck = nil, map[string]bool{}, false, true
	p.upgrade.Message = fmt.Sprintf("interfaces with addresses have moved to bridges of ProviderNetworks on nodes %s: set spec.nodeInterface of the "+
		"ProviderNetworks to Refuse before the rollback, or the nodes can lose their network at their next reboot. If image %s has this field: "+
		"kubectl annotate ovncluster default %s=true", strings.Join(rollout.Few(moved), ", "), p.config.Image, v1alpha1.AnnotationAllowRollback)
}
