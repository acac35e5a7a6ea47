// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"net/netip"

	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/desired"
)

const keyVirtual = "virtual/"

// VipOwner owns the virtual ports of a Vip.
func VipOwner(name string) desired.Owner { return desired.Owner{Kind: KindVip, Name: name} }

// VipHolder is the name under which the allocator knows a Vip, which no port has.
func VipHolder(name string) string { return "vip/" + name }

// OvnEipHolder is the name under which the allocator knows an OvnEip, which no port has.
func OvnEipHolder(name string) string { return "eip/" + name }

// VipInputs is what the ports of a Vip follow from.
type VipInputs struct {
	Name   string
	Subnet string
	// Addresses are the Vip's, at most one of each family.
	Addresses []netip.Addr
	// Parents are the ports of the pods that share them, in order.
	Parents []string
}

// Vip returns one virtual port for each address that pods share. An address that nobody shares has none: the router would drop what is for
// it, also when a pod has it for its own. Names hold an underscore, which those of other ports do not.
func Vip(in VipInputs) []desired.Row {
	if len(in.Parents) == 0 {
		return nil
	}
	rows := make([]desired.Row, 0, len(in.Addresses))
	for _, a := range in.Addresses {
		family := ipfamily.Of(a).String()
		rows = append(rows, virtualPort(keyVirtual+family, in.Name+"_"+family, in.Subnet, VirtualPort{Address: a, Parents: in.Parents}))
	}
	return rows
}
