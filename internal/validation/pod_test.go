// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"testing"
)

func TestIgnoredPodAnnotations(t *testing.T) {
	for name, c := range map[string]struct {
		key, value string
		ignored    bool
	}{
		"a feature that is not built":            {"ovn.kubernetes.io/pod_nic_type", "internal-port", true},
		"groups of another network":              {"net1.shop.ovn.kubernetes.io/security_groups", "a,b", true},
		"a request for another network":          {"net1.shop.kubernetes.io/logical_switch", "s1", true},
		"a request for the first network":        {"ovn.kubernetes.io/logical_switch", "s1", false},
		"a value that requests the default":      {"ovn.kubernetes.io/activation_strategy", "rarp", false},
		"one that does not":                      {"ovn.kubernetes.io/activation_strategy", "none", true},
		"a mirror of the first network":          {"ovn.kubernetes.io/mirror", "true", false},
		"another kind of interface":              {"ovn.kubernetes.io/pod_nic_type", "dpdk-port", true},
		"the kind that there is":                 {"ovn.kubernetes.io/pod_nic_type", "veth-pair", false},
		"an empty value":                         {"ovn.kubernetes.io/vip", " ", false},
		"a result of Kube-OVN's controller":      {"ovn.kubernetes.io/vlan_id", "5", false},
		"an annotation of Kubernetes":            {"cni.projectcalico.kubernetes.io/mirror-pod", "x", false},
		"a name in a domain that is no provider": {"node.kubernetes.io/limit", "x", false},
		"a name in another owner's domain":       {"example.com/vip", "x", false},
		"an annotation without a domain":         {"vip", "x", false},
	} {
		t.Run(name, func(t *testing.T) {
			got := IgnoredPodAnnotations(map[string]string{c.key: c.value})
			if (len(got) == 1) != c.ignored {
				t.Errorf("of %s=%q, %v is ignored", c.key, c.value, got)
			}
		})
	}
}
