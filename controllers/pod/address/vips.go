// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package address

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"

	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// wantsOfVip returns the allocation request for the addresses of the Vip that a pod uses as its own.
func (c *Chooser) wantsOfVip(ctx context.Context, claim *Claim) ([]ipam.Request, error) {
	vip, reason, err := c.Vip(ctx, claim.Port.Namespace, claim.Vip)
	switch {
	case err != nil:
		return nil, err
	case reason == "" && vip.Spec.Type != "":
		reason = fmt.Sprintf("is of type %s, which is for no pod: use one without a type", vip.Spec.Type)
	case reason == "" && claim.Subnet != "" && claim.Subnet != VipSubnet(vip):
		reason = fmt.Sprintf("is of subnet %s, and annotation %s asks for another one", VipSubnet(vip), kubeovnv1.AnnotationLogicalSwitch.Key())
	}
	addresses, known := VipAddresses(vip), true
	if reason == "" && len(addresses) == 0 {
		reason, known = WithoutAddress(vip)
	}
	if reason != "" {
		p := &Problem{Message: fmt.Sprintf("Vip %s, which annotation %s names, %s", claim.Vip, kubeovnv1.AnnotationVip.Key(), reason), Quiet: !known}
		if vip != nil {
			p.Subnets = []string{VipSubnet(vip)}
		}
		return nil, p
	}
	if vip.Spec.Namespace != claim.Port.Namespace { // the namespace of a Vip may use the Vip's subnet
		if err := c.mayUseSubnet(ctx, claim.Port.Namespace, VipSubnet(vip)); err != nil {
			return nil, err
		}
	}
	want := ipam.Request{Subnet: VipSubnet(vip), Addresses: addresses, AnyPool: true, SharedBy: translate.VipHolder(vip.Name)}
	want.MAC, _ = net.ParseMAC(vip.Status.MAC)
	for _, a := range addresses {
		want.Families = append(want.Families, ipfamily.Of(a))
	}
	return []ipam.Request{want}, nil
}

// Vip returns a Vip with its applied spec, and a reason if the pods of a namespace may not use it.
func (c *Chooser) Vip(ctx context.Context, namespace, name string) (vip *kubeovnv1.Vip, reason string, err error) {
	vip, err = k8s.Find[kubeovnv1.Vip](ctx, c.Client, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
	switch {
	case err != nil:
		return nil, "", fmt.Errorf("get Vip %s: %w", name, err)
	case vip == nil:
		return nil, "does not exist: create it, or name another one", nil
	case vip.DeletionTimestamp != nil:
		return vip, "is being deleted", nil
	}
	vip = k8s.AppliedVip(vip)
	reason, err = c.Grants.Vip(ctx, namespace, vip)
	return vip, reason, err
}

// VipSubnet returns the subnet of a Vip.
func VipSubnet(vip *kubeovnv1.Vip) string { return cmp.Or(vip.Spec.Subnet, kubeovnv1.DefaultSubnet) }

// VipAddresses returns the addresses that a Vip has been allocated.
func VipAddresses(vip *kubeovnv1.Vip) []netip.Addr {
	if vip == nil {
		return nil
	}
	return ipfamily.ValidAddrs(vip.Status.V4IP, vip.Status.V6IP)
}

// WithoutAddress returns why a Vip has no address. known is false while its controller has not tried: the pod may have been created together
// with it.
func WithoutAddress(vip *kubeovnv1.Vip) (reason string, known bool) {
	why, known := k8s.WhyNotReady(vip.Status.Conditions, vip.Generation)
	if why == "" {
		return "has no address yet", known
	}
	return "has no address yet: " + why, known
}
