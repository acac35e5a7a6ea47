// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

var ipam = []mutant{{
	id: "ipam-mac-after-refusal", bug: "a refused change loses the MAC address of the port",
	file: "internal/address/ipam/subnet.go",
	old:  `Request{Addresses: before.Addresses, MAC: before.MAC, SharedBy: owner}`,
	new:  `Request{Addresses: before.Addresses, SharedBy: owner}`,
}, {
	id: "ipam-vip-beyond-limit", bug: "a Vip of two families takes a switch with one free port over its limit",
	file: "internal/address/ipam/ports.go",
	old:  `needed <= 0 || u.Used+needed <= u.Limit`,
	new:  `needed <= 0 || u.Used < u.Limit`,
}, {
	id: "ipam-vip-grows-beyond-limit", bug: "a Vip that gets a second family takes a full switch over its limit",
	file: "internal/address/ipam/subnet.go",
	old:  `s.admit(port, w.Request, has)`,
	new:  `s.admit(port, w.Request, 2*has)`,
}, {
	id: "ipam-restore-refused", bug: "after a restart, pods of a switch that is over a lowered limit lose their addresses",
	file: "internal/address/ipam/subnet.go",
	old:  "if !w.asIs {",
	new:  "{",
}, {
	id: "ipam-newest-first", bug: "the address that was released last is allocated first",
	file: "internal/address/ipam/pool.go",
	old:  `i := a.oldest`,
	new:  `i := a.newest`,
}, {
	id: "ipam-move-leaks", bug: "a port that moves to another subnet leaks its former address",
	file: "internal/address/ipam/ipam.go",
	old:  "\tif moved {\n\t\told.subnet.release(port, old)\n\t}\n",
	new:  "",
}, {
	id: "ipam-pool-by-address", bug: "a pod that names no IPPool gets an address of a pool on request",
	file: "internal/address/ipam/subnet.go",
	old:  `at > 0 && !r.AnyPool && !slices.Contains`,
	new:  `at > 0 && len(r.Pools) > 0 && !slices.Contains`,
}, {
	id: "ipam-gateway-mac", bug: "a port gets the MAC address of the subnet's router port",
	file: "internal/address/ipam/mac.go",
	old:  `if s.pools[i].gatewayMAC == mac {`,
	new:  `if s.pools[i].gatewayMAC == mac && mac == noMAC {`,
}, {
	id: "ipam-broadcast", bug: "a port gets the broadcast address",
	file: "internal/address/ipam/layout.go",
	old:  "\tif cidr.Addr().Is4() {\n\t\tr.To = r.To.Prev()\n\t}\n",
	new:  "",
}, {
	id: "ipam-shared-not-returned", bug: "when a pod releases a shared address, the address is free although its Vip still has it",
	file: "internal/address/ipam/subnet.go",
	old:  "p.slots[i].port = used.owner\n\t\t\ts.endSharing(port, family)",
	new:  "s.endSharing(port, family)\n\t\t\tp.free(i)",
}, {
	id: "ipam-deleted-subnet-takes-others", bug: "the deletion of a subnet removes the allocations of ports that moved to another subnet meanwhile",
	file: "internal/address/ipam/ipam.go",
	old:  `if sh.ports[port].subnet == sub {`,
	new:  `if sh.ports[port].subnet != nil {`,
	survives: "a race between close and a move, which no test can place: close makes the subnet refuse changes first, and moved ports are " +
		"no longer in its slots",
}, {
	id: "ipam-second-family", bug: "a subnet that gets a second family gives running pods other addresses",
	file: "internal/address/ipam/fits.go",
	old:  `if len(w.Families) == 0 {`,
	new:  `if len(w.Families) == 0 && len(s.cidrs) < 2 {`,
}, {
	id: "ipam-excluded-later", bug: "a pod loses its address of a pool when the subnet excludes the address later",
	file: "internal/address/ipam/fits.go",
	old:  `case sl.area == nowhere && s.namedByPool(r.Pools, sl.addr):`,
	new:  `case sl.area > 0 && s.namedByPool(r.Pools, sl.addr):`,
}, {
	id: "ipam-avoided-released", bug: "a released address that a host of the physical network has is allocated again",
	file: "internal/address/ipam/pool.go",
	old:  `avoided := avoid != nil && avoid(p.slots[i].addr)`,
	new:  `avoided := false`,
}, {
	id: "ipam-pool-usage", bug: "the status of an IPPool counts used addresses as available",
	file: "internal/address/ipam/usage.go",
	old:  `Available: p.areas[at].size - float64(p.areas[at].held), AvailableRanges`,
	new:  `Available: p.areas[at].size, AvailableRanges`,
}, {
	id: "ipam-held-after-change", bug: "a change of excludeIps makes the subnet report its used addresses as available",
	file: "internal/address/ipam/pool.go",
	old:  "\t\tif sl.port != \"\" && is != nowhere {\n\t\t\tnext[is].held++\n\t\t}\n",
	new:  "",
}}

var allocations = []mutant{{
	id: "allocations-deleted-reservation", bug: "an IP object that is being deleted still reserves its addresses",
	file: "internal/address/allocations/holders.go",
	old:  `if ip == nil || ip.DeletionTimestamp != nil {`,
	new:  `if ip == nil {`,
}, {
	id: "allocations-ordinal-with-zeros", bug: "a pod named web-01 keeps its addresses as if it were pod 1 of StatefulSet web",
	file: "internal/address/allocations/holders.go",
	old:  ` || strconv.Itoa(ordinal) != pod.Name[i+1:]`,
	new:  ``,
}, {
	id: "allocations-record-reserves", bug: "the IP object that records a pod's addresses reserves them for ever",
	file: "internal/address/allocations/holders.go",
	old:  `return !recorded`,
	new:  `return !recorded || len(ip.Labels) > 0`,
}, {
	id: "allocations-other-family", bug: "a reservation of one IPv4 address takes an IPv6 address too",
	file: "internal/address/allocations/holders.go",
	old:  `request.Families = append(request.Families, ipfamily.Of(address))`,
	new:  `_ = address`,
}, {
	id: "allocations-forgotten-owner", bug: "a pod that is present again stays in the list of absent pods of its StatefulSet",
	file: "controllers/pod/retention/states.go",
	old:  `delete(s.byOwner[owner], port); len`,
	new:  `len`,
}, {
	id: "allocations-source", bug: "the log names the subnet as the source of an address that an annotation requests",
	file: "internal/address/allocations/log.go",
	old:  "\tcase len(request.Addresses) > 0:\n\t\treturn SourceRequest\n",
	new:  "",
}}
