// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// privateDropLog is the maximum number of log entries per second and node for packets that a subnet drops.
const privateDropLog = 10

// subnetACLs are the ACLs of a subnet. OVN passes neighbour discovery, router advertisements and DHCP answers before it
// evaluates them.
func subnetACLs(in SubnetInputs) []desired.Row {
	acls := aclSet{parent: desired.SwitchACLs(SwitchRef(in.Name)), seen: map[string]bool{}}
	if in.Private {
		acls.private(in)
	}
	if in.AllowEWTraffic && len(in.ACLs) > 0 {
		for _, cidr := range in.CIDRs {
			for _, direction := range []nb.ACLDirection{nb.ACLDirectionFromLport, nb.ACLDirectionToLport} {
				acls.add("east-west", &nb.ACL{
					Direction: direction, Priority: priorityEastWest, Action: nb.ACLActionAllow, Match: between(cidr, cidr),
				})
			}
		}
	}
	for _, rule := range in.ACLs {
		acl := &nb.ACL{Direction: rule.Direction, Priority: rule.Priority, Action: rule.Action, Match: rule.Match}
		if in.LogDrops && Drops(rule) {
			acl.Log, acl.Severity, acl.Name, acl.Meter = true, new(nb.ACLSeverityWarning), new(SubnetACLName(in.Name, rule)), new(subnetMeter(in.Name))
		}
		acls.add(userRules, acl)
	}
	if in.Private || in.LogDrops && slices.ContainsFunc(in.ACLs, Drops) {
		acls.rows = append(acls.rows, logMeter(in.Name, subnetMeter(in.Name))...)
	}
	return acls.rows
}

// Drops reports whether a rule of a subnet's acls drops packets.
func Drops(rule kubeovnv1.ACL) bool {
	return rule.Action == nb.ACLActionDrop || rule.Action == nb.ACLActionReject
}

// SubnetACLName is the name of a rule of a subnet's acls in logs. Rules with one direction and priority share it.
func SubnetACLName(subnet string, rule kubeovnv1.ACL) string {
	return cut(fmt.Sprintf("acls/%s/%d/%s", rule.Direction, rule.Priority, subnet))
}

// subnetMeter is the name of the meter of a subnet's logs.
func subnetMeter(subnet string) string { return "private-" + SwitchRef(subnet).UUID() }

// userRules is the group of the rows of a subnet's spec.acls in their keys.
const userRules = "user"

// aclSet collects ACLs without duplicates. The key of an ACL is a hash of its rule, so that a rule keeps its row when another
// is inserted before it.
type aclSet struct {
	parent desired.Set
	seen   map[string]bool
	rows   []desired.Row
}

func (s *aclSet) add(group string, acl *nb.ACL) {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d\x00%s\x00%s", acl.Direction, acl.Priority, acl.Action, acl.Match))
	key := "acl/" + group + "/" + hex.EncodeToString(sum[:8])
	if s.seen[key] {
		return
	}
	s.seen[key] = true
	acl.Tier = TierPolicy
	s.rows = append(s.rows, desired.Row{Key: key, Model: acl, Parent: &s.parent})
}

// private isolates the subnet: it drops packets that leave the switch towards a port or the router, unless the source may reach
// the destination. Nodes may, from their own addresses and their addresses on the join subnet, for kubelet's probes and for
// Service traffic from outside the cluster.
func (s *aclSet) private(in SubnetInputs) {
	meter, name := subnetMeter(in.Name), in.Name[:min(len(in.Name), 63)]
	s.add("private", &nb.ACL{
		Direction: nb.ACLDirectionToLport, Priority: priorityPrivateDrop, Action: nb.ACLActionDrop, Match: "ip",
		Log: true, Severity: new(nb.ACLSeverityWarning), Name: &name, Meter: &meter,
	})
	for _, cidr := range in.CIDRs {
		s.allow(priorityPrivateAllow, between(cidr, cidr))
		for _, other := range in.AllowSubnets {
			if other.Addr().Is4() == cidr.Addr().Is4() && other != cidr {
				s.allow(priorityPrivateAllow, between(other, cidr))
				s.allow(priorityPrivateAllow, between(cidr, other))
			}
		}
		if in.Vpc == kubeovnv1.DefaultVpc {
			s.allow(priorityNodeAllow, matchIP("src", cidr.Addr(), "$"+setName(NodesRef(in.Vpc, ipfamily.Of(cidr.Addr())))))
		}
		for _, nodes := range in.NodeCIDRs {
			if nodes.Addr().Is4() == cidr.Addr().Is4() {
				s.allow(priorityNodeAllow, matchIP("src", nodes.Addr(), nodes.String()))
			}
		}
	}
}

func (s *aclSet) allow(priority int, match string) {
	s.add("private", &nb.ACL{
		Direction: nb.ACLDirectionToLport, Priority: priority, Action: nb.ACLActionAllowRelated, Match: match,
	})
}

// between matches packets from one network to another.
func between(from, to netip.Prefix) string {
	return matchIP("src", from.Addr(), from.String()) + " && " + matchIP("dst", to.Addr(), to.String())
}

// logMeter limits the rate at which each node logs the subnet's drops.
func logMeter(subnet, name string) []desired.Row {
	band := desired.Ref{Owner: SubnetOwner(subnet), Key: "private-log-rate"}
	return []desired.Row{
		{Key: band.Key, Model: &nb.MeterBand{Action: nb.MeterBandActionDrop, Rate: privateDropLog}},
		{
			Key:        "private-log",
			Model:      &nb.Meter{Name: name, Unit: nb.MeterUnitPktps},
			References: []desired.Reference{{Column: "bands", To: []desired.Ref{band}}},
		},
	}
}
