// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"strings"
	"testing"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

func TestLabelsThatKubeletsMayWriteAreAdvisedAgainst(t *testing.T) {
	p := &pass{advice: "another one"}
	if p.adviseOnSelectors(); p.advice != "another one" {
		t.Errorf("the defaults: %s", p.advice)
	}
	p.config.Spec.Central.NodeSelector = map[string]string{"kube-ovn/role": "master"}
	p.config.Spec.Controller.NodeSelector = map[string]string{"node-restriction.kubernetes.io/ovn-central": "true"}
	p.config.Spec.Speaker = &v1alpha1.Speaker{NodeSelector: map[string]string{"bgp": "true"}}
	p.adviseOnSelectors()
	if !strings.HasPrefix(p.advice, "another one; nodes can select themselves for spec.central.nodeSelector and spec.speaker.nodeSelector, ") {
		t.Errorf("labels that kubelets may write: %s", p.advice)
	}
}
