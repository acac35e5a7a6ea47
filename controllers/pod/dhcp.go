// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"maps"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/validation"
)

// reasonDHCP is the reason of the event on a pod whose DHCP options cannot be read any more.
const reasonDHCP = "DHCPOptionsInvalid"

var dhcpKeys = map[ipfamily.Family]string{
	ipfamily.IPv4: kubeovnv1.AnnotationDHCPv4.Key(),
	ipfamily.IPv6: kubeovnv1.AnnotationDHCPv6.Key(),
}

// readDHCP are the DHCP options that a pod asks for, by family: nil for nearly all pods.
func readDHCP(pod *corev1.Pod) (map[ipfamily.Family]map[string]string, error) {
	var all map[ipfamily.Family]map[string]string
	for family, key := range dhcpKeys {
		text, err := kubeovnv1.RequestText(pod.Annotations, key)
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

// ownDHCP are the DHCP answers to a pod that asks for some of its own, over what its subnet says. They are given whether the subnet answers
// its other pods or not.
func ownDHCP(a *attachment, cidrs []netip.Prefix, gateways []netip.Addr) ([]translate.PodDHCP, error) {
	asked, err := readDHCP(a.pod)
	if err != nil || len(asked) == 0 {
		return nil, err
	}
	ofSubnet := map[ipfamily.Family]string{ipfamily.IPv4: a.subnet.Spec.DHCPV4Options, ipfamily.IPv6: a.subnet.Spec.DHCPV6Options}
	var own []translate.PodDHCP
	for _, cidr := range cidrs {
		family := ipfamily.Of(cidr.Addr())
		options, ok := asked[family]
		gateway := ofFamily(a.gateways, family, func(g netip.Addr) netip.Addr { return g }) // those beside the pod's addresses
		if !ok || len(gateway) == 0 {
			continue
		}
		base, err := validation.DHCPOptions(family.String(), ofSubnet[family])
		if err != nil {
			return nil, fmt.Errorf("options of subnet %s: %w", a.subnet.Name, err)
		}
		maps.Copy(base, options)
		own = append(own, translate.PodDHCP{CIDR: cidr, Gateway: gateway[0], First: gateways[0], MTU: int(a.subnet.Spec.MTU), Options: base})
	}
	return own, nil
}
