// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
)

// eventNotGrown is the reason of the event on a default subnet that cannot grow to the CIDRs of the OVNCluster.
const eventNotGrown = "SubnetNotGrown"

// grow extends the CIDRs of a default subnet to those of the OVNCluster: it replaces a CIDR by one that contains it, and adds a missing
// family. Otherwise the subnet's own CIDRs stay, because users may change them. A growth that would make the subnet invalid is not
// written, because an invalid subnet gives new pods no addresses. It is tried again when the subnet or its surroundings change.
func (r *Reconciler) grow(ctx context.Context, in inputs) error {
	subnet := in.subnet
	wanted, field := r.Defaults.of(subnet.Name)
	current, err := ipfamily.ParseCIDRs(subnet.Spec.CIDRBlock)
	cidrs := extended(current, wanted)
	if err != nil || slices.Equal(cidrs, current) {
		r.notGrown.Delete(subnet.Name)
		return nil
	}
	in.subnet = subnet.DeepCopy()
	in.subnet.Spec.CIDRBlock = ipfamily.Join(cidrs)
	setDefaults(subnet.Name, &in.subnet.Spec)
	_, problem, err := r.admit(ctx, &in)
	if err != nil {
		return err
	}
	if problem != nil {
		r.reportNotGrown(subnet, fmt.Sprintf("%s of the OVNCluster are %s, and subnet %s stays %s: %s",
			field, ipfamily.Join(wanted), subnet.Name, subnet.Spec.CIDRBlock, problem.Message))
		return nil
	}
	defer r.admissions.end(subnet.Name)
	if err := k8s.Patch(ctx, r.Client, subnet, in.subnet); err != nil {
		return err
	}
	r.notGrown.Delete(subnet.Name)
	*subnet = *in.subnet
	return nil
}

// extended returns the current CIDRs with each replaced by the wanted one that contains it, and with the wanted ones of other families.
func extended(current, wanted []netip.Prefix) []netip.Prefix {
	if len(current) == 0 {
		return current
	}
	cidrs := slices.Clone(current)
	for _, w := range wanted {
		i := slices.IndexFunc(cidrs, func(c netip.Prefix) bool { return c.Addr().BitLen() == w.Addr().BitLen() })
		switch {
		case i < 0:
			cidrs = append(cidrs, w)
		case w.Overlaps(cidrs[i]) && w.Bits() < cidrs[i].Bits():
			cidrs[i] = w
		}
	}
	return cidrs
}

// reportNotGrown records why a subnet cannot grow, and creates an event when the cause changes.
func (r *Reconciler) reportNotGrown(subnet *kubeovnv1.Subnet, why string) {
	if before, _ := r.notGrown.Swap(subnet.Name, why); before != why {
		k8s.Warn(r.Recorder, subnet, eventNotGrown, why)
	}
}

// NotGrown returns why default subnets cannot grow to the CIDRs of the OVNCluster; empty if all have them.
func (r *Reconciler) NotGrown() []string {
	var all []string
	for _, name := range []string{kubeovnv1.DefaultSubnet, kubeovnv1.JoinSubnet} {
		if why, ok := r.notGrown.Load(name); ok {
			all = append(all, why.(string))
		}
	}
	return all
}

// growing returns the default subnets whose CIDRs in the OVNCluster overlap with any of the prefixes. Their growth may depend on these.
func (d Defaults) growing(prefixes []netip.Prefix) []string {
	var names []string
	for _, name := range []string{kubeovnv1.DefaultSubnet, kubeovnv1.JoinSubnet} {
		cidrs, _ := d.of(name)
		if slices.ContainsFunc(cidrs, func(c netip.Prefix) bool { return slices.ContainsFunc(prefixes, c.Overlaps) }) {
			names = append(names, name)
		}
	}
	return names
}
