// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"fmt"
	"strings"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/status"
	"github.com/kiln-net/kiln/internal/k8s"
)

// adviseOnSelectors recommends another label for node selectors that a stolen node can satisfy: the selected nodes have the keys of the databases or of
// their clients, or the passwords of BGP peers. It does not refuse them, because Kube-OVN's label is one of them.
func adviseOnSelectors(spec *v1alpha1.OVNClusterSpec, report *status.Report) {
	if fields := writableSelectors(spec); len(fields) > 0 {
		report.Advise(fmt.Sprintf("nodes can select themselves for %s, because kubelets may write these labels: use node-role.kubernetes.io/control-plane, "+
			"or a label with the prefix node-restriction.kubernetes.io/", strings.Join(fields, " and ")))
	}
}

// writableSelectors returns the fields whose selector a kubelet can satisfy.
func writableSelectors(spec *v1alpha1.OVNClusterSpec) []string {
	var fields []string
	for _, s := range []struct {
		field    string
		selector map[string]string
	}{{"central", spec.Central.NodeSelector}, {"controller", spec.Controller.NodeSelector}, {"speaker", speakerSelector(spec)},
		{"network.externalGateways", spec.Network.ExternalGateways.NodeSelector}} {
		if k8s.KubeletsMaySatisfy(s.selector) {
			fields = append(fields, "spec."+s.field+".nodeSelector")
		}
	}
	return fields
}

func speakerSelector(spec *v1alpha1.OVNClusterSpec) map[string]string {
	if spec.Speaker == nil {
		return nil
	}
	return spec.Speaker.NodeSelector
}
