// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

var validation = []mutant{{
	id: "validation-broadcast-gateway", bug: "the broadcast address is accepted as gateway",
	file: "internal/validation/subnet.go",
	old:  `return addr == cidr.Masked().Addr() || addr.Is4() && addr == ipfamily.LastAddr(cidr)`,
	new:  `return addr == cidr.Masked().Addr()`,
}, {
	id: "validation-long-mtu", bug: "an MTU above the longest packet is accepted",
	file: "internal/validation/subnet.go",
	old:  `bytes < minIPv4MTU || bytes > maxMTU`,
	new:  `bytes < minIPv4MTU`,
}, {
	id: "validation-mapped-cidr", bug: "an IPv4-mapped IPv6 CIDR is accepted, whose pods have addresses that are written like IPv4",
	file: "internal/validation/subnet.go",
	old:  "\tnetip.MustParsePrefix(\"::ffff:0:0/96\"),\n",
	new:  "",
}, {
	id: "validation-join-with-vlan", bug: "the subnet join is accepted with a VLAN, and nodes lose the overlay",
	file: "internal/validation/subnet.go",
	old:  `if spec.Vlan != "" && name == kubeovnv1.JoinSubnet {`,
	new:  `if spec.Vlan != "" && spec.Vpc == kubeovnv1.JoinSubnet {`,
}, {
	id: "validation-wrong-host", bug: "the message about an overlap with a host names another host each time",
	file: "internal/validation/conflict.go",
	old:  `(!ok || addr.Less(host))`,
	new:  `(!ok || host.Less(addr))`,
}, {
	id: "validation-slash-31", bug: "the first address of a /31 is refused as gateway",
	file: "internal/validation/subnet.go",
	old:  `if cidr.Addr().BitLen()-cidr.Bits() < 2 {`,
	new:  `if cidr.Addr().BitLen()-cidr.Bits() < 1 {`,
}, {
	id: "validation-kernel-tables", bug: "a subnet with an external gateway takes the kernel's routing table main",
	file: "internal/validation/egress.go",
	old:  `spec.PolicyRoutingTableID >= tableDefault && spec.PolicyRoutingTableID <= tableLocal`,
	new:  `spec.PolicyRoutingTableID == tableLocal`,
}, {
	id: "validation-outport", bug: "an ACL with outport is accepted in a direction in which OVN does not know it",
	file: "internal/validation/subnet_features.go",
	old:  `if rule.Direction == kubeovnv1.ACLFromPort && read.Uses("outport") {`,
	new:  `if rule.Direction == kubeovnv1.ACLFromPort && read.Uses("inport") && read.Uses("outport") {`,
}, {
	id: "validation-quotes-in-options", bug: "a DHCP option can have quotes, which end the text in OVN's parser",
	file: "internal/validation/options.go",
	old:  `r <= '~' && r != '"' && r != '\\'`,
	new:  `r <= '~' && r != '\\'`,
}, {
	id: "validation-long-option", bug: "a DHCP option with more routes than 255 bytes can hold is accepted",
	file: "internal/validation/options.go",
	old:  `if len(parts)/2 > maxOptionRoutes {`,
	new:  `if len(parts)/2 > maxOptionAddresses {`,
}, {
	id: "validation-same-route", bug: "two equal routes of a VPC become one row key twice, and nothing of the VPC is written",
	file: "internal/validation/vpc.go",
	old:  `other.BySource == route.BySource && other.NextHop == route.NextHop && other.Table == route.Table {`,
	new:  `other.BySource == route.BySource && other.NextHop != route.NextHop && other.Table == route.Table {`,
}, {
	id: "validation-peers-one-address", bug: "both ends of a peering have one address",
	file: "internal/validation/vpc.go",
	old:  `case remote.Addresses[i] == address:`,
	new:  `case remote.Addresses[i] == address && remote.Index < 0:`,
}, {
	id: "validation-pool-outside", bug: "a range of an IPPool that ends outside its subnet is accepted",
	file: "internal/validation/ippool.go",
	old:  `return s.Contains(r.From) && s.Contains(r.To) }`,
	new:  `return s.Contains(r.From) || s.Contains(r.To) }`,
}}
