// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8svalidation "k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/validation"
)

// setDefaults fills empty fields, so that users and other programs can read them. It does not change a field that is set: a client that
// reapplies its manifest would undo the change each time. Therefore excludeIps may lack the gateway; the allocator excludes it anyway. Two
// exceptions: protocol always follows from the CIDRs, and a missing gateway of one of two families is added.
func setDefaults(name string, spec *kubeovnv1.SubnetSpec) {
	spec.Provider = cmp.Or(spec.Provider, kubeovnv1.ProviderOVN)
	if spec.Provider == kubeovnv1.ProviderOVN {
		spec.Vpc = cmp.Or(spec.Vpc, kubeovnv1.DefaultVpc)
		if name != kubeovnv1.JoinSubnet && spec.Vpc == kubeovnv1.DefaultVpc {
			spec.GatewayType = cmp.Or(spec.GatewayType, kubeovnv1.GatewayDistributed)
		}
		if name != kubeovnv1.JoinSubnet && spec.EnableLb == nil {
			spec.EnableLb = new(true)
		}
	}
	network, problem := validation.Subnet(name, spec)
	if problem != nil || len(network.CIDRs) == 0 {
		return
	}
	spec.Protocol = ipfamily.Protocol(network.CIDRs)
	if given, _ := ipfamily.ParseAddrs(spec.Gateway); len(given) < len(network.Gateways) {
		spec.Gateway = ipfamily.Join(network.Gateways)
	}
	if len(spec.ExcludeIPs) == 0 {
		for _, gateway := range network.Gateways {
			spec.ExcludeIPs = append(spec.ExcludeIPs, gateway.String())
		}
	}
}

// setVpcLabel labels a subnet with its VPC. A name that is too long for a label has none.
func setVpcLabel(subnet *kubeovnv1.Subnet) {
	vpc := lookup.VpcOf(subnet)
	if len(k8svalidation.IsValidLabelValue(vpc)) > 0 {
		delete(subnet.Labels, kubeovnv1.LabelVpc)
		return
	}
	if subnet.Labels == nil {
		subnet.Labels = map[string]string{}
	}
	subnet.Labels[kubeovnv1.LabelVpc] = vpc
}

// Defaults holds the settings of the subnets that always exist.
type Defaults struct {
	// PodCIDRs of `ovn-default`, one per family.
	PodCIDRs []netip.Prefix
	// PodGateways of `ovn-default`, at most one per family. A family without one gets the first address of its CIDR.
	PodGateways []netip.Addr
	// PodVlan is the Vlan of `ovn-default`; empty for an overlay subnet.
	PodVlan string
	// ExcludeIPs of `ovn-default` are addresses and ranges.
	ExcludeIPs []string
	// JoinCIDRs of `join`, one per family.
	JoinCIDRs []netip.Prefix
}

// of returns the CIDRs of a subnet and their field in the OVNCluster; none for other subnets.
func (d Defaults) of(subnet string) (cidrs []netip.Prefix, field string) {
	switch subnet {
	case kubeovnv1.DefaultSubnet:
		return d.PodCIDRs, "network.podCIDRs"
	case kubeovnv1.JoinSubnet:
		return d.JoinCIDRs, "network.joinCIDRs"
	}
	return nil, ""
}

// subnet returns `ovn-default` or `join` as they are created in a new installation.
func (d Defaults) subnet(name string) *kubeovnv1.Subnet {
	subnet := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: ipfamily.Join(d.JoinCIDRs)}}
	if name == kubeovnv1.DefaultSubnet {
		subnet.Spec = kubeovnv1.SubnetSpec{
			CIDRBlock: ipfamily.Join(d.PodCIDRs), Gateway: ipfamily.Join(d.PodGateways), ExcludeIPs: d.ExcludeIPs, Default: true,
			Vlan: d.PodVlan, NATOutgoing: d.PodVlan == "",
		}
	}
	setDefaults(name, &subnet.Spec)
	return subnet
}

// CreateDefaults creates the subnets `ovn-default` and `join` if they do not exist. It does not change existing ones. It runs before a new leader
// restores allocations; later, Reconcile creates them again.
func CreateDefaults(ctx context.Context, c client.Client, d Defaults) error {
	for _, name := range []string{kubeovnv1.JoinSubnet, kubeovnv1.DefaultSubnet} {
		if err := k8s.CreateMissing(ctx, c, d.subnet(name)); err != nil {
			return fmt.Errorf("make the default subnets: %w", err)
		}
	}
	return nil
}

// EventRecreated is the reason of the event on a default subnet or VPC that was deleted although it was in use.
const EventRecreated = "CreatedAgain"

// rememberDefault keeps the last valid spec of a default subnet.
func (r *Reconciler) rememberDefault(subnet *kubeovnv1.Subnet, result result) {
	cidrs, _ := r.Defaults.of(subnet.Name)
	switch last := subnet.Status.ValidatedSpec; {
	case len(cidrs) == 0:
	case result.problem == nil && !result.unchecked:
		r.lastDefaults.Store(subnet.Name, subnet.Spec.DeepCopy())
	case last != nil: // has no ACLs
		r.lastDefaults.LoadOrStore(subnet.Name, last.DeepCopy())
	}
}

// missing removes a subnet whose object does not exist. A default subnet is created again instead. If its finalizer was removed by force, its switch, ports and allocations
// stay, and the new object gets the last valid spec, because pods use its addresses.
func (r *Reconciler) missing(ctx context.Context, name string) error {
	if cidrs, _ := r.Defaults.of(name); len(cidrs) == 0 {
		return r.remove(ctx, name)
	}
	subnet := r.Defaults.subnet(name)
	last, forced := r.lastDefaults.Load(name)
	if forced {
		subnet.Spec = *last.(*kubeovnv1.SubnetSpec).DeepCopy()
	}
	if err := k8s.CreateMissing(ctx, r.Client, subnet); err != nil {
		return fmt.Errorf("create the subnet again: %w", err)
	}
	if forced {
		k8s.Warn(r.Recorder, subnet, EventRecreated,
			"this subnet was deleted by force: it exists again with its last valid spec, and its pods keep their network. Labels and annotations of the deleted object are lost")
	}
	return nil
}
