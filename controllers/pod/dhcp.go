// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"maps"
	"net/netip"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/validation"
)

// reasonDHCP is the reason of the event on a connected pod whose DHCP options became invalid.
const reasonDHCP = "DHCPOptionsInvalid"

var dhcpKeys = map[ipfamily.Family]string{
	ipfamily.IPv4: kubeovnv1.AnnotationDHCPv4.Key(),
	ipfamily.IPv6: kubeovnv1.AnnotationDHCPv6.Key(),
}

// readDHCP returns the DHCP options that a pod requests, by family: nil for nearly all pods.
func readDHCP(annotations map[string]string) (map[ipfamily.Family]map[string]string, error) {
	var all map[ipfamily.Family]map[string]string
	for family, key := range dhcpKeys {
		text, err := kubeovnv1.RequestText(annotations, key)
		if err != nil {
			return nil, err
		}
		if text == "" {
			continue
		}
		options, err := validation.DHCPOptions(family.String(), text)
		if err != nil {
			return nil, &kubeovnv1.AnnotationError{Key: key, Value: text, Err: err}
		}
		if all == nil {
			all = map[ipfamily.Family]map[string]string{}
		}
		all[family] = options
	}
	return all, nil
}

// ownDHCP returns the DHCP answers to a pod that requests options, which override its subnet's. They apply even if the subnet does not
// answer DHCP requests of other pods.
func ownDHCP(c *connection, cidrs []netip.Prefix, gateways []netip.Addr) ([]translate.PodDHCP, error) {
	if len(c.asks.dhcp) == 0 {
		return nil, c.asks.invalidDHCP
	}
	ofSubnet := map[ipfamily.Family]string{ipfamily.IPv4: c.subnet.Spec.DHCPV4Options, ipfamily.IPv6: c.subnet.Spec.DHCPV6Options}
	var own []translate.PodDHCP
	for _, cidr := range cidrs {
		family := ipfamily.Of(cidr.Addr())
		options, ok := c.asks.dhcp[family]
		gateway := ofFamily(c.gateways, family, func(g netip.Addr) netip.Addr { return g }) // of the families that the pod has addresses of
		if !ok || len(gateway) == 0 {
			continue
		}
		base, err := validation.DHCPOptions(family.String(), ofSubnet[family])
		if err != nil {
			return nil, fmt.Errorf("options of subnet %s: %w", c.subnet.Name, err)
		}
		maps.Copy(base, options)
		own = append(own, translate.PodDHCP{CIDR: cidr, Gateway: gateway[0], First: gateways[0], MTU: int(c.subnet.Spec.MTU), Options: base})
	}
	return own, nil
}
