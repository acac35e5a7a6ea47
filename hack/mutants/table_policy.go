// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

// compiles selects the tests of the compiler, which need no API server.
const compiles = "^Test(NetworkPolicies|PeersOf|ClusterWidePoliciesOfEachKind|SecurityGroups$|Networks|ARuleHas|RulesThat|ARefused|APolicyHas)"

var policies = []mutant{{
	id: "policy-egress-without-types", bug: "the egress rules of a policy without policyTypes do not apply",
	file: "controllers/policy/compile.go",
	old:  `return t == networkingv1.PolicyTypeIngress || len(np.Spec.Egress) > 0`,
	new:  `return t == networkingv1.PolicyTypeIngress`,
	run:  compiles,
}, {
	id: "policy-peers-incomplete", bug: "the first pod with a named port drops allowed packets until the sets of its peers are complete",
	file: "controllers/policy/compile.go",
	old:  "\t\tfor _, s := range p.selectors { // so that they are complete when a pod with the port is created\n\t\t\tc.use(s)\n\t\t}\n",
	new:  "",
	run:  compiles,
}, {
	id: "policy-end-port-below", bug: "an endPort below port is not reported",
	file: "controllers/policy/compile.go",
	old:  `if out.First < 1 || out.Last < out.First || out.Last > 65535 {`,
	new:  `if out.First < 1 || out.Last > 65535 {`,
	run:  compiles,
}, {
	id: "policy-block-and-selector", bug: "a peer with an ipBlock and a selector allows the whole block",
	file: "controllers/policy/compile.go",
	old:  `(peer.PodSelector != nil || peer.NamespaceSelector != nil)`,
	new:  `(peer.PodSelector != nil && peer.NamespaceSelector != nil)`,
	run:  compiles,
}, {
	id: "policy-all-namespaces", bug: "an empty namespaceSelector selects the policy's own namespace instead of all",
	file: "controllers/policy/compile.go",
	old:  `if namespaces == nil {`,
	new:  `if namespaces == nil || len(namespaces.MatchLabels)+len(namespaces.MatchExpressions) == 0 {`,
	run:  compiles,
}, {
	id: "policy-lax-by-default", bug: "policies drop only TCP, UDP and SCTP unless they ask for more",
	file: "controllers/policy/compile.go",
	old:  `if lax {`,
	new:  `if !lax {`,
	run:  compiles,
}, {
	id: "policy-refused-allows", bug: "a policy beyond the bound of its namespace isolates no pods",
	file: "controllers/policy/compile.go",
	old:  `return r.Action != nb.ACLActionDrop })`,
	new:  `return r.Action == nb.ACLActionDrop })`,
	run:  compiles,
}, {
	id: "policy-protocol-default", bug: "a port without a protocol is a UDP port",
	file: "controllers/policy/compile.go",
	old:  `of := corev1.ProtocolTCP`,
	new:  `of := corev1.ProtocolUDP`,
	run:  compiles,
}, {
	id: "policy-named-port-protocol", bug: "a named TCP port allows the UDP port of the same name",
	file: "controllers/policy/compile.go",
	old:  `s.Role, s.Port, s.Protocol = c.peerRole, port.name, string(port.protocol)`,
	new:  `s.Role, s.Port, s.Protocol = c.peerRole, port.name, "TCP"`,
	run:  compiles,
}, {
	id: "policy-named-port-of-networks", bug: "an egress rule for a named port in a network allows nothing",
	file: "controllers/policy/compile.go",
	old:  `if p.any || len(p.networks) > 0 {`,
	new:  `if p.any {`,
	run:  compiles,
}, {
	id: "policy-only-named-ports", bug: "a rule with named ports only allows all ports",
	file: "controllers/policy/compile.go",
	old:  `if len(ports) == 0 || len(plain) > 0 {`,
	new:  `if len(plain) >= 0 {`,
	run:  compiles,
}, {
	id: "policy-exceptions", bug: "the exceptions of an ipBlock are allowed",
	file: "controllers/policy/networks.go",
	old:  "\t\taddresses.RemovePrefix(except)\n",
	new:  "",
	run:  compiles,
}, {
	id: "policy-except-of-another", bug: "an exception that is larger than its ipBlock is not reported",
	file: "controllers/policy/networks.go",
	old:  `return whole.Bits() <= part.Bits() && whole.Contains(part.Addr())`,
	new:  `return whole.Contains(part.Addr())`,
	run:  compiles,
}, {
	id: "policy-log-of-allowed", bug: "a policy that logs dropped packets logs allowed ones",
	file: "controllers/policy/options.go",
	old:  `o.log[nb.ACLActionDrop] = true`,
	new:  `o.log[nb.ACLActionAllowRelated] = true`,
	run:  compiles,
}, {
	id: "policy-of-attachments", bug: "a policy for an attachment isolates the pods' first network",
	file: "controllers/policy/options.go",
	old:  `case network == networkPrimary:`,
	new:  `case network != "":`,
	run:  compiles,
}, {
	id: "policy-baseline-tier", bug: "a ClusterNetworkPolicy of the baseline tier precedes NetworkPolicies",
	file: "controllers/policy/cluster_kinds.go",
	old:  "\tcase v1alpha2.BaselineTier:\n\t\tp.tier = translate.TierBaseline\n",
	new:  "\tcase v1alpha2.BaselineTier:\n",
	run:  compiles,
}, {
	id: "policy-admin-priorities", bug: "the rules of two AdminNetworkPolicies with neighbouring priorities mix",
	file: "controllers/policy/cluster_kinds.go",
	old:  `return translate.PriorityCluster - priority*roomOfWideAdmin, roomOfWideAdmin`,
	new:  `return translate.PriorityCluster - priority, roomOfWideAdmin`,
	run:  compiles,
}, {
	id: "policy-admin-high-priorities", bug: "two AdminNetworkPolicies with priorities above 99 share one priority of ACLs",
	file: "controllers/policy/cluster_kinds.go",
	old:  `return below - (priority-maxWideAdminPriority-1)*roomOfAdmin, roomOfAdmin`,
	new:  `return below, roomOfAdmin`,
	run:  "AdminNetworkPolicies|Room",
}, {
	id: "policy-room-opens", bug: "a rule for which a policy has no room allows what a rule before it denies",
	file: "controllers/policy/cluster.go",
	old:  `return r.Priority <= last && r.Action == nb.ACLActionAllowRelated })`,
	new:  `return false })`,
	run:  "AdminNetworkPolicies|Room",
}, {
	id: "policy-group-drop-of-wrong-rule", bug: "a drop rule of a security group that cannot be read drops nothing",
	file: "controllers/policy/securitygroup.go",
	old:  `if rule.Action == nb.ACLActionDrop {`,
	new:  `if rule.Action == nb.ACLActionReject {`,
	run:  compiles,
}, {
	id: "policy-group-other-family", bug: "a rule for IPv4 with an IPv6 address matches all addresses",
	file: "controllers/policy/securitygroup.go",
	old:  `if ipfamily.Of(prefix.Addr()) != family {`,
	new:  `if ipfamily.Of(prefix.Addr()) != family && prefix.Bits() == 0 {`,
	run:  compiles,
}, {
	id: "policy-node-addresses", bug: "pods on the host's network are missing from the sets of peers",
	file: "controllers/policy/sets.go",
	old:  `addresses[number] = append(addresses[number], own...)`,
	new:  `addresses[number] = append(addresses[number], own[:0]...)`,
	run:  "Nodes",
}}
