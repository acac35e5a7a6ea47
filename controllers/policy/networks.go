// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"net/netip"

	"go4.org/netipx"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// maxNetworks is the maximum number of networks of one rule. ovn-controller compares all networks of a match with each other: this takes
// 0.2 s for 5,800 and 2 s for 21,000, each time it computes its flows.
const maxNetworks = 4096

// readBlock returns the addresses of an ipBlock minus its exceptions.
func readBlock(in *networkingv1.IPBlock) (*netipx.IPSet, error) {
	var addresses netipx.IPSetBuilder
	cidr, err := ipfamily.ParseCIDR(in.CIDR)
	if err != nil {
		return nil, fmt.Errorf("ipBlock: %w", err)
	}
	addresses.AddPrefix(cidr)
	for _, s := range in.Except {
		except, err := ipfamily.ParseCIDR(s)
		if err != nil {
			return nil, fmt.Errorf("ipBlock.except: %w", err)
		}
		if !contains(cidr, except) {
			return nil, fmt.Errorf("ipBlock.except: %s is not a part of %s", except, cidr)
		}
		addresses.RemovePrefix(except)
	}
	return addresses.IPSet()
}

func contains(whole, part netip.Prefix) bool {
	return whole.Bits() <= part.Bits() && whole.Contains(part.Addr())
}

// networksOf returns the shortest list of networks that covers exactly these addresses, sorted.
func networksOf(addresses *netipx.IPSetBuilder) ([]netip.Prefix, error) {
	set, err := addresses.IPSet()
	if err != nil {
		return nil, err
	}
	var networks []netip.Prefix
	for _, r := range set.Ranges() {
		if networks = r.AppendPrefixes(networks); len(networks) > maxNetworks {
			return nil, fmt.Errorf("its ipBlocks are ignored: without their exceptions they are more than %d networks: "+
				"write fewer or larger ipBlocks, fewer or larger exceptions, or several rules", maxNetworks)
		}
	}
	return networks, nil
}
