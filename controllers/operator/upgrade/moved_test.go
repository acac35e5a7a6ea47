// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/observed"
	"github.com/kiln-net/kiln/controllers/operator/rollout"
	"github.com/kiln-net/kiln/controllers/operator/status"
)

// TestARollbackLeavesNoInterfaceInABridge plans a rollback while the interface of node b has moved.
func TestARollbackLeavesNoInterfaceInABridge(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Input, *rollout.Plan)
		stops  bool
	}{
		"a rollback to another image": {change: func(*Input, *rollout.Plan) {}, stops: true},
		"to the operator's own image": {change: func(in *Input, plan *rollout.Plan) { in.Config.Image = "own" }},
		"an upgrade":                  {change: func(in *Input, plan *rollout.Plan) { plan.Back = false }},
		"an interface without address": {change: func(in *Input, plan *rollout.Plan) {
			in.Report.Nodes[1].Labels = map[string]string{"net1.provider-network.kubernetes.io/ready": "true"}
		}},
		"with permission": {change: func(in *Input, plan *rollout.Plan) {
			in.OVNCluster.Annotations = map[string]string{v1alpha1.AnnotationAllowRollback: "true"}
		}},
		"with another's annotation": {change: func(in *Input, plan *rollout.Plan) { in.OVNCluster.Annotations = map[string]string{"other": "true"} }, stops: true},
	} {
		t.Run(name, func(t *testing.T) {
			in := Input{OVNCluster: &v1alpha1.OVNCluster{}, Report: status.NewReport(&observed.Cluster{Nodes: []corev1.Node{
				{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
				{ObjectMeta: metav1.ObjectMeta{Name: "b", Labels: map[string]string{"net1.provider-network.kubernetes.io/moved": "true"}}},
			}})}
			in.Config.Image = "previous"
			plan := rollout.Plan{Stage: v1alpha1.StageNodes, Back: true, Replace: []string{"kube-ovn-cni-a"}}
			c.change(&in, &plan)
			in.keepMoved(&plan, "own")
			if stopped := len(plan.Replace) == 0 && plan.Stuck; stopped != c.stops {
				t.Errorf("plan: %+v", plan)
			}
			if c.stops && (!strings.Contains(plan.Message, "on nodes b:") || !strings.Contains(plan.Message, "image previous")) {
				t.Errorf("message: %s", plan.Message)
			}
		})
	}
}
