// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package validation checks network resources, for reconcilers and webhooks. Its functions are pure. The checks accept every
// value that Kube-OVN accepts. Messages say what to change.
package validation

import "fmt"

// Problem is an error that the user must fix. There is no retry until the object changes.
type Problem struct {
	// Reason is a word in CamelCase for a condition or an event.
	Reason string
	// Message describes the error and the fix.
	Message string
}

// Reasons of problems.
const (
	ReasonCIDRInvalid    = "CIDRInvalid"          // cidrBlock
	ReasonCIDRConflict   = "CIDRConflict"         // cidrBlock overlaps with another network
	ReasonGatewayInvalid = "GatewayInvalid"       // gateway
	ReasonExcludeInvalid = "ExcludeIPsInvalid"    // excludeIps
	ReasonFieldInvalid   = "FieldInvalid"         // any other field
	ReasonRouteInvalid   = "RouteInvalid"         // staticRoutes, policyRoutes
	ReasonPeeringInvalid = "PeeringInvalid"       // vpcPeerings
	ReasonACLInvalid     = "ACLInvalid"           // acls, allowSubnets
	ReasonDHCPInvalid    = "DHCPOptionsInvalid"   // dhcpV4Options, dhcpV6Options
	ReasonRAInvalid      = "IPv6RAConfigsInvalid" // ipv6RAConfigs
	ReasonIPsInvalid     = "IPsInvalid"           // ips of an IPPool
	ReasonIPsConflict    = "IPsConflict"          // ips of an IPPool overlap with another one's
	ReasonVipsInvalid    = "VipsInvalid"          // vips
	ReasonAddressesInUse = "AddressesInUse"       // the change conflicts with addresses in use
	ReasonNameConflict   = "NameConflict"         // another object needs the name
	ReasonPeerMissing    = "PeerMissing"          // vpcPeerings that the other VPC lacks
	ReasonNamespaceTaken = "NamespaceTaken"       // a namespace that another VPC lists, or that the subnet's VPC does not list

	ReasonSubnetMissing      = "SubnetMissing"      // a subnet that does not exist
	ReasonNextHopUnreachable = "NextHopUnreachable" // a next hop in no network of the router
)

// Problemf returns a problem with a formatted message.
func Problemf(reason, format string, args ...any) *Problem {
	return &Problem{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// Invalid returns a problem of a field.
func Invalid(format string, args ...any) *Problem {
	return Problemf(ReasonFieldInvalid, format, args...)
}

// InUse returns a problem of addresses that are in use.
func InUse(format string, args ...any) *Problem {
	return Problemf(ReasonAddressesInUse, format, args...)
}
