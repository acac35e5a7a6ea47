// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/rollout"
)

// TestARollbackLeavesNoInterfaceInABridge plans a rollback while the interface of node b has moved.
func TestARollbackLeavesNoInterfaceInABridge(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*pass)
		stops  bool
	}{
		"a rollback to another image": {change: func(*pass) {}, stops: true},
		"to the operator's own image": {change: func(p *pass) { p.config.Image = "own" }},
		"an upgrade":                  {change: func(p *pass) { p.upgrade.Back = false }},
		"an interface without address": {change: func(p *pass) {
			p.nodes[1].Labels = map[string]string{"net1.provider-network.kubernetes.io/ready": "true"}
		}},
		"with permission":           {change: func(p *pass) { p.cluster.Annotations = map[string]string{v1alpha1.AnnotationAllowRollback: "true"} }},
		"with another's annotation": {change: func(p *pass) { p.cluster.Annotations = map[string]string{"other": "true"} }, stops: true},
	} {
		t.Run(name, func(t *testing.T) {
			p := &pass{cluster: &v1alpha1.OVNCluster{}, nodes: []corev1.Node{
				{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
				{ObjectMeta: metav1.ObjectMeta{Name: "b", Labels: map[string]string{"net1.provider-network.kubernetes.io/moved": "true"}}},
			}}
			p.config.Image = "previous"
			p.upgrade = rollout.Plan{Stage: v1alpha1.StageNodes, Back: true, Replace: []string{"kube-ovn-cni-a"}}
			c.change(p)
			p.keepMoved("own")
			if stopped := len(p.upgrade.Replace) == 0 && p.upgrade.Stuck; stopped != c.stops {
				t.Errorf("plan: %+v", p.upgrade)
			}
			if c.stops && (!strings.Contains(p.upgrade.Message, "on nodes b:") || !strings.Contains(p.upgrade.Message, "image previous")) {
				t.Errorf("message: %s", p.upgrade.Message)
			}
		})
	}
}
