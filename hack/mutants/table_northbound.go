// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

// engine selects the tests of the engine that need no ovn-northd.
const engine = "^Test(SharedElements|AValue|AfterARestart|TwoOwners|ALeftover|ElementsOf|AChangeOf|ARefusedOwner|ARow|ADeletedRow|Waiting|Parents|Drift|Foreign|OnlyWhat|Deletion|TheDatabaseDepends|Datapaths|TheCapacity|Text|RowsThat|Applying)"

var plan = []mutant{{
	id: "plan-released-by-two", bug: "an address that two pods release in one batch stays in its set",
	file: "internal/northbound/plan.go",
	old:  `!slices.Contains(pl.released[e], other) && (slices`,
	new:  `other != owner && (slices`,
	run:  engine,
}, {
	id: "plan-foreign-members", bug: "a row is removed from sets of rows of other systems",
	file: "internal/northbound/plan.go",
	old:  `if ours && !slices.Contains(except, set.ID) {`,
	new:  `if (ours || true) && !slices.Contains(except, set.ID) {`,
	run:  engine,
}, {
	id: "plan-wrong-record-of-parent", bug: "a row stays in its parent when its record names a set that cannot hold it",
	file: "internal/northbound/plan.go",
	old:  "\tok = ok && slices.Contains(t.parents, childSet{table: parent.Table, column: parent.Column})\n",
	new:  "",
	run:  engine,
}, {
	id: "plan-removed-by-another", bug: "an address that one pod releases and another gets in the same batch is missing from the set",
	file: "internal/northbound/plan.go",
	old:  `actual.Has(e.value) && pl.index.holds(owner, e) {`,
	new:  `actual.Has(e.value) {`,
	run:  engine,
}, {
	id: "plan-unrecorded-values", bug: "addresses that no row records stay in their set",
	file: "internal/northbound/plan.go",
	old:  "\tpl.orphans(p, w)\n",
	new:  "",
	run:  engine,
}, {
	id: "plan-sets-of-one-size", bug: "a changed set of the same size is not written",
	file: "internal/northbound/values.go",
	old:  `return slices.Equal(sorted(a), sorted(b))`,
	new:  `return len(a) == len(b)`,
	run:  engine,
}, {
	id: "plan-copies-owned", bug: "a copy of a row that another client made counts as the row",
	file: "internal/northbound/identity.go",
	old:  `if !ok || ref.UUID() != uuid {`,
	new:  `if !ok {`,
	run:  engine,
}, {
	id: "plan-missing-parent", bug: "a row is sent before its parent exists, and the server refuses the batch",
	file: "internal/northbound/plan.go",
	old:  `if len(missing) > 0 {`,
	new:  `if len(missing) > 1 {`,
	run:  engine,
}, {
	id: "plan-too-many-datapaths", bug: "subnets are created that ovn-northd cannot number, and never work",
	file: "internal/northbound/plan.go",
	old:  `if !pl.admits(p) {`,
	new:  `if !pl.admits(p) && p.detached > 0 {`,
	run:  engine,
}, {
	id: "plan-datapaths-of-a-batch", bug: "the subnets of one batch exceed the number that ovn-northd can number",
	file: "internal/northbound/capacity.go",
	old:  "\tpl.datapaths += more\n",
	new:  "",
	run:  engine,
}, {
	id: "plan-former-groups", bug: "a pod stays in the group that a policy no longer selects it for",
	file: "internal/northbound/plan.go",
	old:  "\tp.removes = append(p.removes, others...)\n",
	new:  "",
	run:  engine,
}, {
	id: "plan-deleted-members", bug: "the port of a deleted pod stays in a group that the same transaction changes",
	file: "internal/northbound/plan.go",
	old:  "\t\tpl.leave(p, id.uuid, nil)\n",
	new:  "",
	run:  engine,
}, {
	id: "plan-null-in-text", bug: "one value with a null character makes ovsdb-server close the connection of the controller",
	file: "internal/northbound/values.go",
	old:  `if i := slices.IndexFunc(v, bad); i >= 0 {`,
	new:  `if i := slices.IndexFunc(v, bad); i > 0 {`,
	run:  engine,
}, {
	id: "plan-old-parent-kept", bug: "a pod that moves to another subnet stays a port of the former switch",
	file: "internal/northbound/plan.go",
	old:  "\tif current != nil {\n\t\tpl.detach(",
	new:  "\tif current == nil {\n\t\tpl.detach(",
	run:  engine,
}, {
	id: "pace-stale", bug: "the limit that a pod had before is written after its removal",
	file: "internal/northbound/queue.go",
	old:  "\t\tdelete(q.later, r.owner)\n",
	new:  "",
	run:  "^TestWhatIsLeft",
}, {
	id: "pace-idle", bug: "the limit that a pod had before is written, because nothing differs when it is removed",
	file: "internal/northbound/queue.go",
	old:  `return later || q.busy[owner] > 0`,
	new:  `return later && q.busy[owner] > 0 || q.busy[owner] > 0`,
	run:  "^TestWhatIsLeft",
}, {
	id: "pace-none", bug: "each limit of a burst makes ovn-northd compute everything",
	file: "internal/northbound/pace.go",
	old:  `p.next = time.Now().Add(p.every)`,
	new:  `p.next = time.Now()`,
	run:  "^TestLimitsAreLeft",
}, {
	id: "pace-silent", bug: "the owner of a limit that the server refuses later is not called",
	file: "internal/northbound/pace.go",
	old:  `if IsRefusal(err) || errors.Is(err, errDiverged) {`,
	new:  `if errors.Is(err, errDiverged) {`,
	run:  "^TestALateChange",
}, {
	id: "pace-former-term", bug: "a limit of a former term is written in the next one",
	file: "internal/northbound/fence.go",
	old:  "\t\t\te.queue.drop() // of a former term\n",
	new:  "",
	run:  "^TestWhatAFormerTerm",
}}

var translation = []mutant{{
	id: "translate-ip-mode-proxy", bug: "pods reach a load balancer's address of ipMode Proxy without the proxy",
	file: "internal/northbound/translate/service.go",
	old:  `if ingress.IPMode == nil || *ingress.IPMode == corev1.LoadBalancerIPModeVIP {`,
	new:  `if ingress.IP != "" {`,
}, {
	id: "translate-source-ranges", bug: "loadBalancerSourceRanges do not apply to pods",
	file: "internal/northbound/translate/service.go",
	old:  `if len(s.Spec.LoadBalancerSourceRanges) == 0 {`,
	new:  `if len(s.Status.LoadBalancer.Ingress) > 0 {`,
}, {
	id: "translate-proxy-label-in-vpc", bug: "a Service of a custom VPC with the label of another proxy is not served",
	file: "internal/northbound/translate/service.go",
	old:  `others && proxy != ProxyOfVPCs && vpc == kubeovnv1.DefaultVpc`,
	new:  `others && proxy != ProxyOfVPCs`,
}, {
	id: "translate-draining-with-ready", bug: "new connections go to terminating endpoints although others are ready",
	file: "internal/northbound/translate/service_endpoints.go",
	old:  "\treturn ready\n}\n\nfunc addressType",
	new:  "\treturn append(ready, draining...)\n}\n\nfunc addressType",
}, {
	id: "translate-affinity-moves", bug: "clients with session affinity move when an endpoint is added",
	file: "internal/northbound/translate/service.go",
	old:  `if !sticky || before == "" {`,
	new:  `if !sticky || len(of) > 0 {`,
}, {
	id: "translate-allow-subnets-one-way", bug: "a private subnet gets packets from its allowSubnets, and they get none from it",
	file: "internal/northbound/translate/subnet_acl.go",
	old:  "\t\t\t\ts.allow(priorityPrivateAllow, between(cidr, other))\n",
	new:  "",
}, {
	id: "translate-ecmp-one-hop", bug: "of several gateway nodes only one is used",
	file: "internal/northbound/translate/gateway.go",
	old:  `policy.Nexthops = append(policy.Nexthops, hop.String())`,
	new:  `policy.Nexthops = []string{hop.String()}`,
}, {
	id: "translate-rule-of-two-families", bug: "a policy for 0.0.0.0/0 allows all IPv6 packets too",
	file:  "internal/northbound/translate/policy.go",
	old:   `case ipfamily.Of(network.Addr()) != family:`,
	new:   `case ipfamily.Of(network.Addr()) != family && network.Bits() > 0:`,
	tests: []string{"./controllers/policy"},
	run:   compiles,
}, {
	id: "translate-range-of-one-port", bug: "a policy for a range of ports allows the first one only",
	file:  "internal/northbound/translate/policy.go",
	old:   `case p.Last <= p.First:`,
	new:   `case p.Last >= p.First:`,
	tests: []string{"./controllers/policy"},
	run:   compiles,
}, {
	id: "translate-forged-hairpin", bug: "a pod that sends with the source of hairpin connections passes all policies",
	file:  "internal/northbound/translate/podset.go",
	old:   ` && %s.src == %s && flags.loopback"`,
	new:   ` && %s.src == %s"`,
	tests: []string{"./internal/northbound"},
	run:   "Hairpin",
}, {
	id: "translate-egress-of-vpcs", bug: "pods of custom VPCs are in the address set of pods that leave through their node",
	file: "internal/northbound/translate/pod.go",
	old:  `if in.Vpc != kubeovnv1.DefaultVpc {`,
	new:  `if in.Vpc != kubeovnv1.DefaultVpc && in.Vpc == "" {`,
}, {
	id: "translate-port-security-of-vips", bug: "port security drops packets of a pod from its shared Vip",
	file: "internal/northbound/translate/pod.go",
	old:  `slices.Concat(in.Addresses, in.Vips, in.Shared)`,
	new:  `slices.Concat(in.Addresses, in.Vips)`,
}, {
	id: "translate-machine-active-twice", bug: "during a live migration the port is active on both nodes",
	file: "internal/northbound/translate/pod.go",
	old:  "\t\tport.Options[optionActivation] = \"rarp\"\n",
	new:  "",
}, {
	id: "translate-port-name-taken", bug: "a subnet's router port has the name of another object's port",
	file: "internal/northbound/translate/refs.go",
	old:  `if !taken && !strings.Contains(name, ".")`,
	new:  `if !strings.Contains(name, ".")`,
}, {
	id: "translate-default-route-of-table", bug: "a default route in one route table of a VPC removes the default routes of the others",
	file: "internal/northbound/translate/route.go",
	old:  `r.BySource == other.BySource && r.Table == other.Table`,
	new:  `r.BySource == other.BySource`,
}, {
	id: "translate-reroute-two-families", bug: "a policy route with next hops of both families sends IPv6 packets to an IPv4 next hop",
	file: "internal/northbound/translate/route.go",
	old:  `if len(byFamily) > 1 {`,
	new:  `if len(byFamily) > 2 {`,
}, {
	id: "translate-group-priority", bug: "the rules of a security group are evaluated in the opposite order of their priorities",
	file:  "internal/northbound/translate/securitygroup.go",
	old:   `prioritySecurityRule-r.Priority`,
	new:   `prioritySecurityRule+r.Priority`,
	tests: []string{"./controllers/policy"},
	run:   compiles,
}, {
	id: "translate-vpc-gateway-unfiltered", bug: "packets of a custom VPC without natOutgoing leave the VPC",
	file: "internal/northbound/translate/transit.go",
	old:  `{{"services/", "dst", in.Services}, {"outgoing/", "src", in.Outgoing}}`,
	new:  `{{"services/", "src", in.Services}, {"outgoing/", "dst", in.Outgoing}}`,
}, {
	id: "translate-port-without-provider", bug: "the ports of two networks of a pod have the same name",
	file:  "api/v1/port.go",
	old:   `p.Name += "." + p.Provider`,
	new:   `p.Name += ""`,
	tests: []string{"./api/v1"},
}, {
	id: "egress-zone-of-former", bug: "the router for other addresses gets the tracking zone of the former one, with its connections",
	file:  "controllers/egressaddress/controller.go",
	old:   `return translate.NewEgressZone(router, func(zone int) bool { return used[zone] })`,
	new:   `return 0`,
	tests: []string{"./controllers/egressaddress"},
	run:   "^TestOtherAddresses",
}, {
	id: "egress-zone-changes", bug: "a router of an earlier version gets a zone at an upgrade, and its connections end",
	file:  "controllers/egressaddress/controller.go",
	old:   "\t\tif row.Name == router {\n",
	new:   "\t\tif row.Name == router && translate.ReadEgressZone(row) != 0 {\n",
	tests: []string{"./controllers/egressaddress"},
	run:   "^TestOtherAddresses",
}}
