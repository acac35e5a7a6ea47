// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

var plugin = []mutant{{
	id: "cni-gc-without-list", bug: "a GC without a list of attachments detaches all pods of the node",
	file: "cni/plugin/config.go",
	old:  "\tif list == nil {\n\t\treturn nil, types.NewError",
	new:  "\tif list == nil {\n\t\treturn nil, nil\n\t}\n\tif list == nil {\n\t\treturn nil, types.NewError",
}, {
	id: "cni-no-uid", bug: "a pod that is created again under its name gets the address of the deleted one",
	file: "cni/plugin/config.go",
	old:  `string(c.identity.K8S_POD_UID)`,
	new:  `""`,
}, {
	id: "cni-add-outlives-kubelet", bug: "an ADD waits longer than the kubelet, which then gets no reason",
	file: "cni/plugin/plugin.go",
	old:  `addTimeout   = 110 * time.Second`,
	new:  `addTimeout   = 300 * time.Second`,
}, {
	id: "cni-del-without-agent", bug: "no pod can be stopped on a node whose agent is down",
	file: "cni/plugin/plugin.go",
	old:  `if wire.Unavailable(err) {`,
	new:  `if wire.Unavailable(err) && args.ContainerID == "none" {`,
}, {
	id: "cni-check-without-result", bug: "CHECK has no previous result to compare with, and reports success",
	file: "cni/plugin/config.go",
	old:  "\t\tPrevResult:   c.previous,\n",
	new:  "",
}, {
	id: "cni-agent-has-more-time", bug: "the agent's reason comes after the plugin has given up",
	file: "cni/wire/client.go",
	old:  `time.Until(deadline) * 9 / 10`,
	new:  `time.Until(deadline) * 11 / 10`,
}, {
	id: "cni-add-does-not-wait", bug: "an ADD fails while the agent restarts, and the kubelet tries again later",
	file: "cni/wire/client.go",
	old:  `if Unavailable(err) && c.listens(ctx) {`,
	new:  `if Unavailable(err) && ctx.Err() != nil {`,
}, {
	id: "cni-cut-answer", bug: "an answer that is cut short counts as success",
	file: "cni/wire/client.go",
	old:  `if !whole || !strings.HasPrefix`,
	new:  `if !whole && version == "" || !strings.HasPrefix`,
}, {
	id: "cni-agent-predecessor", bug: "the agent gives a pod the result of an earlier pod of its name that its cache still has",
	file: "agent/cniserver/pods.go",
	old:  "\tcase !isPod(pod, uid):\n",
	new:  "\tcase !isPod(pod, uid) && pod.UID == \"\":\n",
	run:  "Predecessor",
}, {
	id: "cni-repair-first-network", bug: "the second interface of a pod whose port was lost gets the logical port of the first",
	file: "agent/cniserver/repair.go",
	old:  `NetNS: n.netNS, Provider: n.provider}`,
	new:  `NetNS: n.netNS, Provider: v1.ProviderOVN}`,
	run:  "MissingPorts",
}}

// plans selects the tests of the host's plan, which need no network namespace.
const plans = "Plan|PodMTU|Tracked|Disjoint|AllTranslated"

var node = []mutant{{
	id: "host-own-network", bug: "a subnet with an address of the node cuts the node off its network",
	file: "agent/host/plan.go",
	old:  `if !gateway.IsValid() || slices.ContainsFunc(node, cidr.Contains) {`,
	new:  `if !gateway.IsValid() {`,
	run:  plans,
}, {
	id: "host-nat-of-all", bug: "traffic of subnets without natOutgoing is translated",
	file: "agent/host/plan.go",
	old:  `if subnet.Spec.NATOutgoing {`,
	new:  `if subnet.Spec.Vpc == "" {`,
	run:  plans,
}, {
	id: "host-unsorted-prefixes", bug: "overlapping prefixes reach nftables, which refuses the whole table",
	file: "agent/host/plan.go",
	old:  `if len(out) == 0 || !out[len(out)-1].Overlaps(p) {`,
	new:  `if len(out) == 0 || out[len(out)-1] != p {`,
	run:  plans,
}, {
	id: "host-shared-egress-address", bug: "two gateway nodes answer for one egress address",
	file: "agent/host/egress.go",
	old:  `if !spec.Shared(ip) {`,
	new:  `if ip.IsValid() {`,
	run:  plans,
}, {
	id: "host-gateway-elsewhere", bug: "each node renews a Lease as if it were a gateway",
	file: "agent/host/egress.go",
	old:  `p.Gateway = p.Gateway || central && here`,
	new:  `p.Gateway = p.Gateway || central || here`,
	run:  plans,
}, {
	id: "host-youngest-wins", bug: "a new subnet takes the egress of an older one with overlapping addresses",
	file: "agent/host/egress.go",
	old:  `cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time)`,
	new:  `cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time)`,
	run:  plans,
}, {
	id: "host-external-on-all", bug: "traffic of a centralized subnet goes to the external gateway from nodes that are no gateway",
	file: "agent/host/egress.go",
	old:  `if gateway.UsesTable(s) && (!central || here) &&`,
	new:  `if gateway.UsesTable(s) &&`,
	run:  plans,
}, {
	id: "host-mtu-of-ipv6-tunnels", bug: "packets of pods do not fit into tunnels over IPv6",
	file: "agent/host/mtu.go",
	old:  `headers += ipv6Overhead`,
	new:  `headers += 0`,
	run:  plans,
}, {
	id: "host-mtu-of-vxlan", bug: "packets of pods do not fit when one of two tunnel types has a larger overhead",
	file: "agent/host/mtu.go",
	old:  `headers = max(headers, of)`,
	new:  `headers = of`,
	run:  plans,
}, {
	id: "host-conntrack-lowered", bug: "the agent lowers an administrator's limit of connections",
	file: "agent/host/conntrack.go",
	old:  `err == nil && have < n`,
	new:  `err == nil && have != n`,
	run:  plans,
}}
