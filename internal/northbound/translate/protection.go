// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// KindProtection is the kind of the owner of a VPC's limits of packets for ovn-controller. It is reserved; the owner has the VPC's name.
const KindProtection = "Protection"

// keyCopp never changes, because switches and routers of other owners refer to the row.
const keyCopp = "copp"

// ProtectionOwner owns the limits of a VPC. They are not rows of the VPC's owner, because they exist even while the VPC is invalid: the
// switches of its subnets refer to them.
func ProtectionOwner(vpc string) desired.Owner { return desired.Owner{Kind: KindProtection, Name: vpc} }

// CoppRef is the row with a VPC's limits, to which its routers and switches refer.
func CoppRef(vpc string) desired.Ref { return desired.Ref{Owner: ProtectionOwner(vpc), Key: keyCopp} }

// packetKinds are the kinds of packets with a limit, and OVN's protocols in each (ovn-nb(5), Copp). The protocol svc-monitor has no
// limit: a loss would look like a failure of an endpoint. Kiln does not use dns and event-elb.
var packetKinds = []struct {
	name      string // without a dash (v1alpha1.PacketMeter)
	protocols []string
	rate      func(v1alpha1.ControlPacketRates) int32
}{
	{"dhcp", []string{"dhcpv4-opts", "dhcpv6-opts", "nd-ra-opts"}, func(r v1alpha1.ControlPacketRates) int32 { return r.DHCP }},
	{"neighbors", []string{"arp", "nd-na", "nd-ns"}, func(r v1alpha1.ControlPacketRates) int32 { return r.Neighbors }},
	{"resolutions", []string{"arp-resolve", "nd-ns-resolve"}, func(r v1alpha1.ControlPacketRates) int32 { return r.Resolutions }},
	{"rejects", []string{"reject", "tcp-reset"}, func(r v1alpha1.ControlPacketRates) int32 { return r.Rejects }},
	{"errors", []string{"icmp4-error", "icmp6-error"}, func(r v1alpha1.ControlPacketRates) int32 { return r.Errors }},
	{"multicast", []string{"igmp"}, func(r v1alpha1.ControlPacketRates) int32 { return r.Multicast }},
	{"bfd", []string{"bfd"}, func(r v1alpha1.ControlPacketRates) int32 { return r.BFD }},
}

// Protection returns the limits of a VPC on the packets that its switches and routers pass to ovn-controller. A node has one meter for
// each name, so the names of two VPCs differ, and all switches and routers of a VPC share its meters. Without limits the row that these
// refer to is empty.
func Protection(vpc string, p v1alpha1.ControlPlaneProtection) []desired.Row {
	copp := &nb.Copp{Name: "copp-" + vpc, Meters: map[string]string{}}
	rows := []desired.Row{{Key: keyCopp, Model: copp}}
	if p.Mode == v1alpha1.ProtectionUnlimited {
		return rows
	}
	rates := p.PacketsPerSecond.Effective()
	for _, kind := range packetKinds {
		meter := v1alpha1.PacketMeter(kind.name, vpc)
		for _, protocol := range kind.protocols {
			copp.Meters[protocol] = meter
		}
		band := desired.Ref{Owner: ProtectionOwner(vpc), Key: "rate/" + kind.name}
		rows = append(rows,
			desired.Row{Key: band.Key, Model: &nb.MeterBand{Action: nb.MeterBandActionDrop, Rate: int(kind.rate(rates))}},
			desired.Row{
				Key:        "meter/" + kind.name,
				Model:      &nb.Meter{Name: meter, Unit: nb.MeterUnitPktps},
				References: []desired.Reference{{Column: "bands", To: []desired.Ref{band}}},
			})
	}
	return rows
}

// protectedBy is the reference of a switch or router to the limits of a VPC.
func protectedBy(vpc string) desired.Reference {
	return desired.Reference{Column: "copp", To: []desired.Ref{CoppRef(vpc)}}
}
