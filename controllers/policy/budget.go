// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import "github.com/kiln-net/kiln/internal/serving/budget"

// Bounds of the flows (translate.PolicyRule.Flows) on a node, for one NetworkPolicy and for all NetworkPolicies of a namespace.
// ovn-controller takes 10 to 20 µs for each flow of a policy whenever it computes all flows (BenchmarkNetworks), and sets up no pod
// meanwhile: about 1 s for a policy at its bound, 5 to 10 s for a namespace. For comparison: the pods of a cluster of 500 nodes take 4 s.
const (
	maxPolicyFlows    = 1 << 16
	maxNamespaceFlows = 1 << 19
)

// maxPolicySets is the maximum number of sets of pods of one NetworkPolicy. Each set adds two rows to the database, and an element to the
// row of each of its pods. A policy has a set for each selector and each named port, in egress for each pair of both.
const maxPolicySets = 1024

// namespaceBounds limits the total cost of the policies of a namespace. It has no bound for one policy, because a policy that exceeds
// maxPolicyFlows loses rules instead.
var namespaceBounds = budget.Bounds{Group: maxNamespaceFlows}
