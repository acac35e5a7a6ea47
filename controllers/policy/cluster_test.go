// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"testing"

	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

func TestClusterWidePoliciesOfEachKind(t *testing.T) {
	compile := func(p clusterPolicy) compiled { return clusterNetworkPolicy(p, fixedNumbers, fixedNodes) }
	policies(t, "testdata/adminnetworkpolicy-*.in.yaml", func(p *v1alpha1.AdminNetworkPolicy) compiled { return compile(readAdmin(p)) })
	policies(t, "testdata/baseline-*.in.yaml", func(p *v1alpha1.BaselineAdminNetworkPolicy) compiled { return compile(readBaseline(p)) })
	policies(t, "testdata/clusternetworkpolicy-*.in.yaml", func(p *v1alpha2.ClusterNetworkPolicy) compiled { return compile(readCluster(p)) })
}
