// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package desired holds the types that translators and the northbound engine share: translators return desired rows, the engine
// writes them. It is a leaf: values only.
package desired

import (
	"crypto/sha1" //nolint:gosec // for names, not for secrets
	"strings"

	"github.com/google/uuid"
)

// Owner is the Kubernetes object, or the reserved name, from which rows are derived. Two owners never share a row.
type Owner struct {
	Kind      string // of the Kubernetes object: "Pod", "Subnet"; or a reserved one for shared sets: "NodeGroup"
	Namespace string // empty for cluster-scoped objects
	Name      string
}

// String returns the form stored in external_ids: "Pod/default/web-0", "Subnet//ovn-default".
func (o Owner) String() string { return o.Kind + "/" + o.Namespace + "/" + o.Name }

// ParseOwner is the inverse of Owner.String. Kinds, namespaces and names of Kubernetes objects contain no slash.
func ParseOwner(s string) (Owner, bool) {
	parts := strings.Split(s, "/")
	if len(parts) != 3 || parts[0] == "" || parts[2] == "" {
		return Owner{}, false
	}
	return Owner{Kind: parts[0], Namespace: parts[1], Name: parts[2]}, true
}

// Ref names one row by its owner and its key, which is unique per owner. It is comparable. It needs no look-up: the row's UUID
// is derived from it.
type Ref struct {
	Owner Owner
	Key   string
}

// rowSpace is the UUIDv5 name space (RFC 9562, section 5.5) of the rows. It must never change: row UUIDs in live databases
// derive from it.
var rowSpace = uuid.MustParse("8d0f5c9e-54a5-5c0e-9c0b-6b696c6e6e62")

// UUID returns the row's _uuid in the northbound database: UUIDv5 of owner and key.
func (r Ref) UUID() string {
	var buffer [256]byte // avoids allocations: UUID runs many times for every pod
	named := append(buffer[:0], rowSpace[:]...)
	for _, part := range [...]string{r.Owner.Kind, "/", r.Owner.Namespace, "/", r.Owner.Name, "\x00", r.Key} {
		named = append(named, part...)
	}
	sum := sha1.Sum(named) //nolint:gosec // RFC 9562 says so
	id := uuid.UUID(sum[:16])
	id[6] = id[6]&0x0f | 0x50 // version 5
	id[8] = id[8]&0x3f | 0x80 // RFC 9562's variant
	return id.String()
}

// Set is a set-valued column of one row, such as the ports of a logical switch.
type Set struct {
	Table  string // as in the schema: "Logical_Switch"
	Column string // as in the schema: "ports"
	Row    Ref
}

// Reference fills a column of the row itself with references to other rows.
type Reference struct {
	Column string // as in the schema: "load_balancer_group", "dhcpv4_options"
	To     []Ref
	// Optional leaves the column empty while a row of another owner does not exist. The owner is notified when the row arrives or is deleted.
	Optional bool
}

// Element is one value in a set column of another row, such as an address in an address set.
type Element struct {
	Of    Set
	Value string
}

// Row is one row that an owner wants in the northbound database.
type Row struct {
	// Key is unique among the owner's rows. It never changes for the same object.
	Key string
	// Model is a pointer to a model of internal/ovsdb/nb. The engine sets _uuid, the owner's external_ids (the name in
	// Load_Balancer_Group, which has no external_ids) and the columns of References. It ignores columns that it does not
	// manage.
	Model any
	// Parent is the set column that keeps the row alive; nil for root tables, whose rows need no parent (ovn-nb(5)).
	Parent *Set
	// References fill reference columns of this row. If a referenced row does not exist, and the reference is not optional, Apply returns ErrWaiting.
	References []Reference
	// Members are set columns of other rows that hold this row in addition to its parent: the port groups of a port, the group
	// of a load balancer. The engine writes them as mutate deltas. Only this row's owner changes them.
	Members []Set
	// Elements are values that this row's owner adds to set columns of other rows. They are removed together with the row.
	Elements []Element
	// Values are the values that Elements can have. The row records them; if it has all of them in every state, a change of Elements does not change the row.
	Values []string
}

// Tables and columns named in Sets, as in the NB schema (ovn-nb(5)).
const (
	TableLogicalSwitch     = "Logical_Switch"
	TableLogicalRouter     = "Logical_Router"
	TableRouterPort        = "Logical_Router_Port"
	TableSwitchPort        = "Logical_Switch_Port"
	TablePortGroup         = "Port_Group"
	TableAddressSet        = "Address_Set"
	TableLoadBalancer      = "Load_Balancer"
	TableLoadBalancerGroup = "Load_Balancer_Group"
)

// SwitchPorts is the set of ports of a logical switch.
func SwitchPorts(r Ref) Set { return Set{Table: TableLogicalSwitch, Column: "ports", Row: r} }

// PortMirrors is the set of mirrors of a logical switch's port.
func PortMirrors(r Ref) Set { return Set{Table: TableSwitchPort, Column: "mirror_rules", Row: r} }

// SwitchACLs is the set of ACLs of a logical switch.
func SwitchACLs(r Ref) Set { return Set{Table: TableLogicalSwitch, Column: "acls", Row: r} }

// SwitchQoS is the set of QoS rules of a logical switch.
func SwitchQoS(r Ref) Set { return Set{Table: TableLogicalSwitch, Column: "qos_rules", Row: r} }

// RouterPorts is the set of ports of a logical router.
func RouterPorts(r Ref) Set { return Set{Table: TableLogicalRouter, Column: "ports", Row: r} }

// PortChassis is the set of chassis of a router's port.
func PortChassis(r Ref) Set { return Set{Table: TableRouterPort, Column: "gateway_chassis", Row: r} }

// RouterPolicies is the set of policies of a logical router.
func RouterPolicies(r Ref) Set { return Set{Table: TableLogicalRouter, Column: "policies", Row: r} }

// RouterRoutes is the set of static routes of a logical router.
func RouterRoutes(r Ref) Set { return Set{Table: TableLogicalRouter, Column: "static_routes", Row: r} }

// RouterNAT is the set of translations of a logical router.
func RouterNAT(r Ref) Set { return Set{Table: TableLogicalRouter, Column: "nat", Row: r} }

// RouterLoadBalancers is the set of load balancers of a logical router.
func RouterLoadBalancers(r Ref) Set {
	return Set{Table: TableLogicalRouter, Column: "load_balancer", Row: r}
}

// GroupPorts is the set of ports of a port group.
func GroupPorts(r Ref) Set { return Set{Table: TablePortGroup, Column: "ports", Row: r} }

// GroupACLs is the set of ACLs of a port group.
func GroupACLs(r Ref) Set { return Set{Table: TablePortGroup, Column: "acls", Row: r} }

// SetAddresses is the set of addresses of an address set.
func SetAddresses(r Ref) Set { return Set{Table: TableAddressSet, Column: "addresses", Row: r} }

// HealthChecks is the set of health checks of a load balancer.
func HealthChecks(r Ref) Set { return Set{Table: TableLoadBalancer, Column: "health_check", Row: r} }

// GroupLoadBalancers is the set of load balancers of a load balancer group.
func GroupLoadBalancers(r Ref) Set {
	return Set{Table: TableLoadBalancerGroup, Column: "load_balancer", Row: r}
}
