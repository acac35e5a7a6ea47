// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"fmt"

	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// The tests use a simplified network: a subnet is a switch, a node is a port group, a pod is a port in both.

func subnet(name string) desired.Owner { return desired.Owner{Kind: "Subnet", Name: name} }
func node(name string) desired.Owner   { return desired.Owner{Kind: "Node", Name: name} }
func vpc(name string) desired.Owner    { return desired.Owner{Kind: "Vpc", Name: name} }
func policy(name string) desired.Owner {
	return desired.Owner{Kind: "Policy", Namespace: "ns", Name: name}
}
func service(name string) desired.Owner {
	return desired.Owner{Kind: "Service", Namespace: "ns", Name: name}
}
func pod(name string) desired.Owner { return desired.Owner{Kind: "Pod", Namespace: "ns", Name: name} }

func switchRef(name string) desired.Ref    { return desired.Ref{Owner: subnet(name), Key: "switch"} }
func groupRef(name string) desired.Ref     { return desired.Ref{Owner: node(name), Key: "pods"} }
func routerRef(name string) desired.Ref    { return desired.Ref{Owner: vpc(name), Key: "router"} }
func servicesRef(name string) desired.Ref  { return desired.Ref{Owner: vpc(name), Key: "services"} }
func addressesRef(name string) desired.Ref { return desired.Ref{Owner: policy(name), Key: "addresses"} }

func subnetRows(name string) []desired.Row {
	return []desired.Row{{
		Key:   "switch",
		Model: &nb.LogicalSwitch{Name: name, OtherConfig: map[string]string{"subnet": "10.16.0.0/16"}},
	}}
}

func nodeRows(name string) []desired.Row {
	return []desired.Row{{Key: "pods", Model: &nb.PortGroup{Name: "pods_" + name}}}
}

func vpcRows(name string) []desired.Row {
	return []desired.Row{
		{Key: "router", Model: &nb.LogicalRouter{Name: name}},
		{Key: "services", Model: &nb.LoadBalancerGroup{}},
		{
			Key: "default-route", Parent: new(desired.RouterRoutes(routerRef(name))),
			Model: &nb.LogicalRouterStaticRoute{IPPrefix: "0.0.0.0/0", Nexthop: "100.64.0.1"},
		},
	}
}

func serviceRows(vpcName string) []desired.Row {
	return []desired.Row{{
		Key:     "tcp",
		Model:   &nb.LoadBalancer{Name: "lb", Vips: map[string]string{"10.96.0.1:443": "10.16.0.2:6443"}},
		Members: []desired.Set{desired.GroupLoadBalancers(servicesRef(vpcName))},
	}}
}

func policyRows(name string) []desired.Row {
	return []desired.Row{{Key: "addresses", Model: &nb.AddressSet{Name: "as_" + name}}}
}

// podRows is a port on a switch in port groups.
func podRows(name, onSwitch string, inGroups ...string) []desired.Row {
	row := desired.Row{
		Key: "ovn",
		Model: &nb.LogicalSwitchPort{
			Name:        name + ".ns",
			Addresses:   []string{"00:00:00:00:00:01 10.16.0.2"},
			Options:     map[string]string{"iface-id-ver": name},
			ExternalIDs: map[string]string{"pod": "ns/" + name},
		},
		Parent: new(desired.SwitchPorts(switchRef(onSwitch))),
	}
	for _, group := range inGroups {
		row.Members = append(row.Members, desired.GroupPorts(groupRef(group)))
	}
	return []desired.Row{row}
}

// limitRow limits the traffic to a pod.
func limitRow(name, onSwitch string, rate int) desired.Row {
	return desired.Row{
		Key: "limit", Parent: new(desired.SwitchQoS(switchRef(onSwitch))),
		Model: &nb.QoS{
			Priority: 1, Direction: nb.QoSDirectionToLport, Match: `outport == "` + name + `.ns"`, Bandwidth: map[string]int{nb.QoSBandwidthRate: rate},
		},
	}
}

// podWithAddress is a pod that adds an address to address sets.
func podWithAddress(name, onSwitch, address string, toSets ...string) []desired.Row {
	rows := podRows(name, onSwitch)
	for _, set := range toSets {
		of := desired.Set{Table: desired.TableAddressSet, Column: "addresses", Row: addressesRef(set)}
		rows[0].Elements = append(rows[0].Elements, desired.Element{Of: of, Value: address})
	}
	return rows
}

func podNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("pod-%05d", i)
	}
	return names
}
