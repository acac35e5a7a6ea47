// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package subnet turns Subnets into logical switches and makes their addresses known to the allocator.
package subnet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipam"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/selection"
	"github.com/kiln-net/kiln/internal/validation"
)

// workers work on subnets at a time, so that many share a transaction, and with it a computation of ovn-northd.
const workers = 16

// Reconciler makes the logical switch of each Subnet so.
type Reconciler struct {
	Client     client.Client
	Northbound *northbound.Engine
	Allocator  *ipam.Allocator
	Networks   *selection.Networks
	Recorder   events.EventRecorder
	Gate       *k8s.Gate
	// Detached is told each VPC that is gone and that a subnet has let go of.
	Detached func(vpc string)
	// ServiceCIDRs are the cluster's addresses of Services.
	ServiceCIDRs k8s.ServiceCIDRs
	// UsageDelay is from a change of a subnet's use to the update of its status, 1 s when zero.
	UsageDelay time.Duration

	// told is what the allocator was told of each subnet last, as text.
	told       sync.Map
	admissions admissions
	// measured are the labels under which the use of each subnet is exported.
	measured sync.Map
}

// Reconcile makes one Subnet so. A wrong spec changes nothing: what was in force before stays.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	in, err := r.gather(ctx, req.Name)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("gather inputs of subnet %s: %w", req.Name, err)
	}
	if in.subnet == nil {
		return ctrl.Result{}, r.remove(ctx, req.Name)
	}
	switch {
	case in.subnet.DeletionTimestamp == nil:
		if err := r.prepare(ctx, in.subnet); err != nil {
			return ctrl.Result{}, err
		}
	case r.held(req.Name) == 0:
		return ctrl.Result{}, r.finish(ctx, in.subnet)
	}
	result := r.apply(ctx, in)
	if result.unchecked {
		return ctrl.Result{}, result.err // agents go by what the status says of the spec
	}
	return ctrl.Result{}, errors.Join(k8s.Unless(result.err, northbound.ErrWaiting), r.patchStatus(ctx, in, result))
}

// prepare writes what a new subnet lacks: the finalizer, and the fields of its spec that have defaults.
func (r *Reconciler) prepare(ctx context.Context, subnet *kubeovnv1.Subnet) error {
	base := subnet.DeepCopy()
	setDefaults(subnet.Name, &subnet.Spec)
	return k8s.PatchWithFinalizer(ctx, r.Client, base, subnet)
}

// result is how an attempt to apply a subnet ended.
type result struct {
	// problem is what is wrong with the spec.
	problem *validation.Problem
	// unchecked: err kept the spec from being looked at.
	unchecked bool
	// unbuilt: the spec asks for another kind of network than this version builds.
	unbuilt bool
	// err is why a good spec is not in force.
	err error
	// querier is the one that asks for multicast groups.
	querier *translate.Querier
}

// inForce reports whether the present spec is.
func (r result) inForce() bool { return r.problem == nil && !r.unbuilt && r.err == nil }

// apply checks the subnet and, when there is nothing wrong, tells the allocator and commits its rows. Addresses are known before
// the switch: a port that comes early waits for it.
func (r *Reconciler) apply(ctx context.Context, in inputs) result {
	checked, problem, err := r.admit(ctx, &in)
	if problem != nil || err != nil {
		return result{problem: problem, unchecked: err != nil, err: err}
	}
	defer r.admissions.end(in.subnet.Name)
	if len(validation.UnbuiltSubnetFields(&in.subnet.Spec)) > 0 {
		return result{unbuilt: true}
	}
	if problem, err := r.tell(in.subnet, checked.network); problem != nil || err != nil {
		return result{problem: problem, err: err}
	}
	var noQuerier error
	checked.querier, noQuerier = r.querier(ctx, in.subnet, checked.network)
	err = r.Northbound.Apply(ctx, translate.SubnetOwner(in.subnet.Name), translate.Subnet(rowInputs(in, checked)))
	switch {
	case err == nil && in.vpc == nil:
		if vpc := selection.VpcOf(in.subnet); northbound.Get[nb.LogicalRouter](r.Northbound, translate.RouterRef(vpc)) != nil {
			r.Detached(vpc)
		}
		err = fmt.Errorf("%w: VPC %s does not exist: create it, or delete the subnet, whose ports reach one another only",
			northbound.ErrWaiting, selection.VpcOf(in.subnet))
	case errors.Is(err, northbound.ErrWaiting):
		err = fmt.Errorf("%w: VPC %s has no router yet", northbound.ErrWaiting, selection.VpcOf(in.subnet))
	}
	return result{err: errors.Join(err, noQuerier), querier: checked.querier}
}

// tell makes the allocator know a subnet's addresses, unless a pod has got one since the check that would be cut off. It says nothing twice:
// whoever waits for an address would be woken.
func (r *Reconciler) tell(s *kubeovnv1.Subnet, network validation.Network) (*validation.Problem, error) {
	if r.knows(s.Name, network) {
		return nil, nil
	}
	held, err := r.Allocator.ChangeSubnet(s.Name, ipam.Subnet(network), func(h ipam.Holder) bool {
		return s.Name != kubeovnv1.JoinSubnet && h.Port != translate.QuerierHolder(s.Name) &&
			(outside(h.Address, network) || isGateway(h.Address, network))
	})
	if err != nil {
		return nil, fmt.Errorf("tell the allocator: %w", err)
	}
	if len(held) > 0 {
		return cutOff(s, network, held), nil
	}
	r.told.Store(s.Name, fmt.Sprint(network))
	return nil, nil
}

// knows reports whether the allocator was told just this of a subnet.
func (r *Reconciler) knows(name string, network validation.Network) bool {
	last, ok := r.told.Load(name)
	return ok && last == fmt.Sprint(network) && r.Allocator.HasSubnet(name)
}

// finish lets a deleted subnet go that nothing holds an address of. Until then it is in force as any other: what has an address works.
func (r *Reconciler) finish(ctx context.Context, subnet *kubeovnv1.Subnet) error {
	if err := r.releaseQuerier(ctx, subnet); err != nil {
		return err
	}
	if err := r.remove(ctx, subnet.Name); err != nil {
		return err
	}
	return k8s.RemoveFinalizer(ctx, r.Client, subnet)
}

// remove takes a subnet from the allocator and its rows from the database.
func (r *Reconciler) remove(ctx context.Context, name string) error {
	r.told.Delete(name)
	r.unmeasure(name)
	r.Allocator.DeleteSubnet(name)
	if err := r.Northbound.Apply(ctx, translate.SubnetOwner(name), nil); err != nil {
		return fmt.Errorf("delete the switch of subnet %s: %w", name, err)
	}
	return nil
}

// held is how many addresses of a subnet are in use, but for what the subnet itself uses.
func (r *Reconciler) held(name string) float64 {
	usage := r.Allocator.Usage(name)
	own, _ := r.Allocator.Lookup(translate.QuerierHolder(name))
	return usage.IPv4().Using + usage.IPv6().Using - float64(len(own.Addresses))
}
