// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"net/netip"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/desired"
)

const keyVirtual = "virtual/"

// VipOwner owns the virtual ports of a Vip.
func VipOwner(name string) desired.Owner { return desired.Owner{Kind: KindVip, Name: name} }

// VipInputs are the inputs of Vip.
type VipInputs struct {
	Name   string
	Subnet string
	// Vpc is the VPC through whose router traffic from the addresses leaves the subnet; empty if it leaves by the physical network.
	Vpc string
	// Addresses are the Vip's, at most one of each family.
	Addresses []netip.Addr
	// Parents are the ports of the pods that share the addresses, in order.
	Parents []string
}

// Vip returns one virtual port per address if pods share them. Without parents it returns none: for a virtual port without a
// parent the router would drop packets to the address, even if a pod has it as its own. Port names end with an underscore and
// the family, which distinguishes them from all other port names.
func Vip(in VipInputs) []desired.Row {
	if len(in.Parents) == 0 {
		return nil
	}
	rows := make([]desired.Row, 0, len(in.Addresses))
	for _, a := range in.Addresses {
		family := ipfamily.Of(a).String()
		rows = append(rows, virtualPort(keyVirtual+family, in.Name+"_"+family, in.Subnet, in.Vpc, VirtualPort{Address: a, Parents: in.Parents}))
	}
	return rows
}
