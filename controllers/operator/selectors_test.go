// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"strings"
	"testing"
	"time"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

func TestLabelsThatKubeletsMayWriteAreAdvisedAgainst(t *testing.T) {
	report, spec := seeing(time.Time{}).Report, &v1alpha1.OVNClusterSpec{}
	report.Advise("another one")
	if adviseOnSelectors(spec, report); report.Advice() != "another one" {
		t.Errorf("the defaults: %s", report.Advice())
	}
	spec.Central.NodeSelector = map[string]string{"kube-ovn/role": "master"}
	spec.Controller.NodeSelector = map[string]string{"node-restriction.kubernetes.io/ovn-central": "true"}
	spec.Speaker = &v1alpha1.Speaker{NodeSelector: map[string]string{"bgp": "true"}}
	spec.Network.ExternalGateways.NodeSelector = map[string]string{"rack": "a"}
	adviseOnSelectors(spec, report)
	if !strings.HasPrefix(report.Advice(), "another one; nodes can select themselves for spec.central.nodeSelector and spec.speaker.nodeSelector and spec.network.externalGateways.nodeSelector, ") {
		t.Errorf("labels that kubelets may write: %s", report.Advice())
	}
}
