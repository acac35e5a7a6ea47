// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package validation checks network resources, for reconcilers and webhooks alike. Its functions are pure. A check
// takes whatever Kube-OVN takes, and messages say what to change.
package validation

import "fmt"

// Problem is something that its user has to change. Nothing is tried again until they do.
type Problem struct {
	// Reason is a word in CamelCase for a condition or an event.
	Reason string
	// Message says what is wrong and what to change.
	Message string
}

// Reasons of problems.
const (
	ReasonCIDRInvalid    = "CIDRInvalid"          // cidrBlock
	ReasonCIDRConflict   = "CIDRConflict"         // cidrBlock against what others use
	ReasonGatewayInvalid = "GatewayInvalid"       // gateway
	ReasonExcludeInvalid = "ExcludeIPsInvalid"    // excludeIps
	ReasonFieldInvalid   = "FieldInvalid"         // any other field
	ReasonRouteInvalid   = "RouteInvalid"         // staticRoutes, policyRoutes
	ReasonPeeringInvalid = "PeeringInvalid"       // vpcPeerings
	ReasonACLInvalid     = "ACLInvalid"           // acls, allowSubnets
	ReasonDHCPInvalid    = "DHCPOptionsInvalid"   // dhcpV4Options, dhcpV6Options
	ReasonRAInvalid      = "IPv6RAConfigsInvalid" // ipv6RAConfigs
	ReasonIPsInvalid     = "IPsInvalid"           // ips of an IPPool
	ReasonIPsConflict    = "IPsConflict"          // ips of an IPPool against those of another one
	ReasonVipsInvalid    = "VipsInvalid"          // vips
	ReasonAddressesInUse = "AddressesInUse"       // a change that addresses in use do not allow
	ReasonNameConflict   = "NameConflict"         // a name that something else needs
	ReasonPeerMissing    = "PeerMissing"          // vpcPeerings that the other VPC does not have
	ReasonNamespaceTaken = "NamespaceTaken"       // a namespace that another VPC lists, or that the subnet's VPC does not list

	ReasonSubnetMissing      = "SubnetMissing"      // a subnet that does not exist
	ReasonNextHopUnreachable = "NextHopUnreachable" // a next hop in no network of the router
)

func problem(reason, format string, args ...any) *Problem {
	return &Problem{Reason: reason, Message: fmt.Sprintf(format, args...)}
}
