// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// inputs is the state from which a subnet's rows and status are computed.
type inputs struct {
	subnet *kubeovnv1.Subnet
	// vpc is the VPC of the subnet with its applied spec, nil if it does not exist. The default VPC always exists.
	vpc *kubeovnv1.Vpc
	// named are the namespaces that the subnet names or selects.
	named []string
	// peers are the other subnets of its VPC that overlap with it.
	peers []*kubeovnv1.Subnet
	// join is the subnet of the nodes with its applied spec, nil unless it is another subnet of the same VPC.
	join *kubeovnv1.Subnet
	// namesake is the VPC with the same name as the subnet, nil if there is none.
	namesake client.Object
	// nameTaken: an older object uses the name of a port between the subnet and its VPC's router.
	nameTaken bool
	// hosts maps addresses that nodes must reach outside of OVN to a description of their owner.
	hosts map[netip.Addr]string
	// services are the CIDRs of Services.
	services []netip.Prefix
	// sharing maps each vip of the subnet to the ports that may use it.
	sharing map[netip.Addr][]string
	// balanced are the addresses of the subnet that load balancers serve.
	balanced []netip.Addr
	// vlan is the Vlan of an underlay subnet, nil if it does not exist. lastVlan is the one of its last valid spec.
	vlan, lastVlan *kubeovnv1.Vlan
	// logLeft is the time for which drops by its acls are logged; logProblem is the reason why its annotation about that is ignored.
	logLeft    time.Duration
	logProblem string
}

// gather reads the inputs from the cache. subnet is nil if the object does not exist.
func (r *Reconciler) gather(ctx context.Context, name string) (inputs, error) {
	subnet := &kubeovnv1.Subnet{}
	if err := r.Client.Get(ctx, client.ObjectKey{Name: name}, subnet); apierrors.IsNotFound(err) {
		return inputs{}, nil
	} else if err != nil {
		return inputs{}, fmt.Errorf("get it: %w", err)
	}
	return r.gatherFor(ctx, subnet)
}

// gatherFor reads the inputs of a subnet with a given spec.
func (r *Reconciler) gatherFor(ctx context.Context, subnet *kubeovnv1.Subnet) (inputs, error) {
	in := inputs{subnet: subnet}
	left, logErr := kubeovnv1.ParseLogDrops(subnet.Annotations, r.now())
	if logErr != nil {
		in.logProblem = logErr.Error()
	} else if slices.ContainsFunc(subnet.Spec.ACLs, translate.Drops) {
		in.logLeft = left
	}
	vpc, err := k8s.Find[kubeovnv1.Vpc](ctx, r.Client, client.ObjectKey{Name: lookup.VpcOf(subnet)}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return inputs{}, fmt.Errorf("get its VPC: %w", err)
	}
	if vpc == nil && lookup.VpcOf(subnet) == kubeovnv1.DefaultVpc { // its controller creates it again: its subnets stay attached meanwhile
		vpc = &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: kubeovnv1.DefaultVpc}}
	}
	if vpc != nil {
		in.vpc = k8s.AppliedVpc(vpc)
	}
	if in.vlan, err = r.vlan(ctx, subnet.Spec.Vlan); err != nil {
		return inputs{}, err
	}
	if last := subnet.Status.ValidatedSpec; last != nil {
		if in.lastVlan, err = r.vlan(ctx, last.Vlan); err != nil {
			return inputs{}, err
		}
	}
	if in.named, err = r.Namespaces.Selected(ctx, subnet); err != nil {
		return inputs{}, err
	}
	if in.join, err = r.join(ctx, subnet); err != nil {
		return inputs{}, err
	}
	if in.namesake, err = r.Networks.SameName(ctx, subnet); err != nil {
		return inputs{}, err
	}
	if in.nameTaken, err = r.Networks.SubnetNameTaken(ctx, subnet); err != nil {
		return inputs{}, err
	}
	if in.sharing, err = r.sharing(ctx, subnet); err != nil {
		return inputs{}, err
	}
	if in.balanced, err = r.balanced(ctx, subnet.Name); err != nil {
		return inputs{}, err
	}
	return in, nil
}

// join returns the subnet of the nodes, or nil unless it is another subnet of the same VPC.
func (r *Reconciler) join(ctx context.Context, subnet *kubeovnv1.Subnet) (*kubeovnv1.Subnet, error) {
	join, err := k8s.Find[kubeovnv1.Subnet](ctx, r.Client, client.ObjectKey{Name: kubeovnv1.JoinSubnet}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("get subnet %s: %w", kubeovnv1.JoinSubnet, err)
	}
	if join == nil || join.Name == subnet.Name {
		return nil, nil
	}
	if join = k8s.Applied(join); lookup.VpcOf(join) != lookup.VpcOf(subnet) {
		return nil, nil
	}
	return join, nil
}

// gatherAround finds other users of addresses in the subnet. Only admit may validate with them: without its lock, another subnet may be
// admitted meanwhile.
func (r *Reconciler) gatherAround(ctx context.Context, in *inputs) error {
	cidrs, err := ipfamily.ParseCIDRs(in.subnet.Spec.CIDRBlock)
	if err != nil {
		return nil // check reports it
	}
	if in.peers, err = r.Networks.Overlapping(ctx, lookup.VpcOf(in.subnet), cidrs); err != nil {
		return err
	}
	onVlan, err := r.onSameVlan(ctx, in.subnet, cidrs)
	if err != nil {
		return err
	}
	in.peers = append(in.peers, onVlan...)
	in.peers = slices.DeleteFunc(in.peers, func(peer *kubeovnv1.Subnet) bool { return peer.Name == in.subnet.Name })
	if in.services, err = r.ServiceCIDRs.List(ctx); err != nil {
		return err
	}
	in.hosts, err = r.Networks.HostsIn(ctx, cidrs)
	return err
}
