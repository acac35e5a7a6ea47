// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package k8s

import "testing"

func TestSelectorsThatANodeCanSatisfyByItself(t *testing.T) {
	for name, tt := range map[string]struct {
		selector map[string]string
		want     bool
	}{
		"the default":                            {nil, false},
		"the control plane":                      {map[string]string{"node-role.kubernetes.io/control-plane": ""}, false},
		"a restricted label":                     {map[string]string{"node-restriction.kubernetes.io/ovn-central": "true"}, false},
		"the default of the speaker":             {map[string]string{"ovn.kubernetes.io/bgp": "true"}, false},
		"the label of Kube-OVN":                  {map[string]string{"kube-ovn/role": "master"}, true},
		"a label without a domain":               {map[string]string{"infra": "true"}, true},
		"another domain":                         {map[string]string{"example.com/node-restriction.kubernetes.io": ""}, true},
		"a domain that only ends the same":       {map[string]string{"notkubernetes.io/role": ""}, true},
		"the host name":                          {map[string]string{"kubernetes.io/hostname": "cp-1"}, true},
		"a label of the kubelet's own domain":    {map[string]string{"kubelet.kubernetes.io/role": ""}, true},
		"a subdomain of the node's own domain":   {map[string]string{"x.node.kubernetes.io/role": ""}, true},
		"a label of k8s.io":                      {map[string]string{"example.k8s.io/role": ""}, false},
		"one restricted label and another one":   {map[string]string{"kube-ovn/role": "master", "node-role.kubernetes.io/control-plane": ""}, false},
		"the zone, which a kubelet may write":    {map[string]string{"topology.kubernetes.io/zone": "a"}, true},
		"the zone and the label of Kube-OVN":     {map[string]string{"topology.kubernetes.io/zone": "a", "kube-ovn/role": "master"}, true},
		"the operating system and control plane": {map[string]string{"kubernetes.io/os": "linux", "node-role.kubernetes.io/control-plane": ""}, false},
	} {
		if got := KubeletsMaySatisfy(tt.selector); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
