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

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/equality"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/routergateway"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/limits"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/reconciler"
	"github.com/kiln-net/kiln/internal/svc"
	"github.com/kiln-net/kiln/internal/validation"
)

// workers is the number of subnets that are reconciled in parallel. Parallel changes share a transaction, and thereby a computation of
// ovn-northd.
const workers = 16

// Reconciler reconciles Subnets to logical switches in the northbound database.
type Reconciler struct {
	Client     client.Client
	Northbound *northbound.Engine
	Allocator  *ipam.Allocator
	Networks   *lookup.Networks
	Routers    *routergateway.Ports
	Namespaces *lookup.Namespaces
	Recorder   events.EventRecorder
	Gate       *reconciler.StartGate
	// Detached is called with the name of a deleted VPC when a subnet has detached from its router.
	Detached func(vpc string)
	// ServiceCIDRs returns the cluster's CIDRs of Services.
	ServiceCIDRs svc.CIDRs
	// Defaults are the CIDRs of the OVNCluster, to which default subnets grow.
	Defaults Defaults
	// Limits are the limits of pods in subnets that do not set their own; nil for none.
	Limits *limits.Cluster
	// SilentDelay and SilentEvery replace silentDelay and silentEvery if they are not zero.
	SilentDelay, SilentEvery time.Duration
	// UsageDelay is the delay between a change of a subnet's usage and the update of its status. Zero means 1 s.
	UsageDelay time.Duration
	// Now is the clock; nil: time.Now.
	Now func() time.Time

	// allocatorNetworks has the last network that the allocator received for each subnet, as text.
	allocatorNetworks sync.Map
	// lastDefaults has, by name, the last spec of each default subnet, with which it is created again after a forced deletion.
	lastDefaults sync.Map
	// notGrown has the reason, by name, why a default subnet cannot grow.
	notGrown sync.Map
	// logProblems are the reported problems of annotations, by name.
	logProblems reconciler.Reports[string, string]
	admissions  admissions
	// silent paces the reports of silent gateways, and usage paces the reports of used addresses.
	silent, usage reconciler.Paced
}

// Reconcile applies one Subnet. An invalid spec changes nothing: the last valid spec stays applied, even if its rows were lost.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if req.Name == "" {
		return ctrl.Result{}, r.limitsChanged(ctx)
	}
	in, err := r.gather(ctx, req.Name)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("gather inputs of subnet %s: %w", req.Name, err)
	}
	if in.subnet == nil {
		r.logProblems.Forget(req.Name)
		return ctrl.Result{}, r.missing(ctx, req.Name)
	}
	switch {
	case in.subnet.DeletionTimestamp == nil:
		if err := r.grow(ctx, in); err != nil {
			return ctrl.Result{}, fmt.Errorf("grow subnet %s: %w", req.Name, err)
		}
		if err := r.prepare(ctx, in.subnet); err != nil {
			return ctrl.Result{}, err
		}
	case r.held(req.Name) == 0:
		return ctrl.Result{}, r.finish(ctx, in.subnet)
	}
	result := r.apply(ctx, in)
	r.rememberDefault(in.subnet, result)
	if result.unchecked {
		return ctrl.Result{}, result.err // do not update the status: agents use the validated spec in it
	}
	if r.logProblems.New(req.Name, in.logProblem) {
		k8s.Warn(r.Recorder, in.subnet, EventAnnotationInvalid, in.logProblem)
	}
	return ctrl.Result{RequeueAfter: in.logLeft}, errors.Join(k8s.Unless(result.err, northbound.ErrWaiting), r.patchStatus(ctx, in, result))
}

// EventAnnotationInvalid is the reason of the event on a subnet with an annotation whose value is invalid.
const EventAnnotationInvalid = "AnnotationInvalid"

func (r *Reconciler) now() time.Time {
	if r.Now != nil {
		return r.Now()
	}
	return time.Now()
}

// logsUntil returns the value of the annotation AnnotationLogDropsUntil.
func logsUntil(s *kubeovnv1.Subnet) string {
	return s.Annotations[kubeovnv1.AnnotationLogDropsUntil.Key()]
}

// limitsChanged enqueues the subnets whose limits differ from the ones in their status, after a change of the OVNCluster.
func (r *Reconciler) limitsChanged(ctx context.Context) error {
	var subnets kubeovnv1.SubnetList
	if err := r.Client.List(ctx, &subnets, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list subnets: %w", err)
	}
	for i := range subnets.Items {
		if s := &subnets.Items[i]; !equality.Semantic.DeepEqual(s.Status.PodLimits, r.limitsOf(s)) {
			r.Limits.Changed.Add(s.Name)
		}
	}
	return nil
}

// limitsOf returns the limits of a subnet's pods; nil without any.
func (r *Reconciler) limitsOf(s *kubeovnv1.Subnet) *kubeovnv1.PodLimits {
	if s.Name == kubeovnv1.JoinSubnet {
		return nil
	}
	return limits.Merge(k8s.Applied(s).Spec.PodLimits, r.Limits.Limits())
}

// prepare adds the finalizer, the label with the VPC and the default values of empty fields to a subnet.
func (r *Reconciler) prepare(ctx context.Context, subnet *kubeovnv1.Subnet) error {
	base := subnet.DeepCopy()
	setDefaults(subnet.Name, &subnet.Spec)
	setVpcLabel(subnet)
	return k8s.PatchWithFinalizer(ctx, r.Client, base, subnet)
}

// result is the outcome of an attempt to apply a subnet.
type result struct {
	// problem is the reason why the spec is invalid; nil if it is valid.
	problem *validation.Problem
	// unchecked: err occurred before the spec could be validated.
	unchecked bool
	// err is the error because of which the spec, or the last valid one, is not applied.
	err error
	// querier sends the multicast group membership queries; nil if there is none.
	querier *translate.Querier
	// connected: router is committed.
	connected bool
	// router is the VPC's router port in an underlay subnet; nil if there is none.
	router *translate.GatewayPort
}

// specApplied reports whether the current spec is applied.
func (r result) specApplied() bool { return r.problem == nil && r.err == nil }

// apply validates the subnet, and applies its spec or, if that has a problem, its last valid spec.
func (r *Reconciler) apply(ctx context.Context, in inputs) result {
	checked, problem, err := r.admit(ctx, &in)
	switch {
	case err != nil:
		return result{unchecked: true, err: err}
	case problem != nil:
		return r.retain(ctx, in.subnet, problem)
	}
	defer r.admissions.end(in.subnet.Name)
	return r.commit(ctx, in, checked)
}

// retain applies the last valid spec of a subnet whose current spec has a problem. Existing rows stay as they are if a stricter version refuses
// that spec, or a port has an address outside of it.
func (r *Reconciler) retain(ctx context.Context, subnet *kubeovnv1.Subnet, problem *validation.Problem) result {
	if subnet.Status.ValidatedSpec == nil {
		return result{problem: problem}
	}
	last := *subnet
	last.Spec = *subnet.Status.ValidatedSpec
	in, err := r.gatherFor(ctx, &last)
	if err == nil {
		err = r.gatherAround(ctx, &in)
	}
	if err != nil {
		return result{problem: problem, err: err}
	}
	checked, refused := parse(&last)
	if refused != nil {
		return result{problem: problem}
	}
	applied := r.commit(ctx, in, checked)
	applied.problem = problem
	return applied
}

// commit passes a valid spec to the allocator and commits its rows. The allocator is updated before the switch exists: rows of an early port
// wait for the switch.
func (r *Reconciler) commit(ctx context.Context, in inputs, checked checked) result {
	localnet, err := r.localnet(in)
	if err != nil {
		return result{err: err}
	}
	if problem, err := r.tell(in.subnet, checked.network); problem != nil || err != nil {
		return result{problem: problem, err: err}
	}
	var router *translate.GatewayPort
	var noRouter error
	if localnet != nil {
		router, noRouter = r.Routers.Port(ctx, routergateway.Underlay{
			Subnet: in.subnet, Provider: localnet.Network, Network: checked.network, Asked: checked.features.Interconnection, Hosts: in.hosts,
		})
	} else {
		noRouter = r.Routers.Release(ctx, in.subnet)
	}
	if router == nil && k8s.Unless(noRouter, northbound.ErrWaiting) != nil {
		return result{err: noRouter} // the rows stay, with a port that works
	}
	if localnet != nil {
		localnet.Router = router
	}
	var noQuerier error
	checked.querier, noQuerier = r.querier(ctx, in.subnet, checked.network)
	err = r.Northbound.Apply(ctx, translate.SubnetOwner(in.subnet.Name), translate.Subnet(rowInputs(in, checked, localnet)))
	switch {
	case err == nil && in.vpc == nil && in.subnet.Spec.OnRouter():
		if vpc := lookup.VpcOf(in.subnet); northbound.Get[nb.LogicalRouter](r.Northbound, translate.RouterRef(vpc)) != nil {
			r.Detached(vpc)
		}
		err = fmt.Errorf("%w: VPC %s does not exist: create it, or delete the subnet, whose ports reach one another only",
			northbound.ErrWaiting, lookup.VpcOf(in.subnet))
	case errors.Is(err, northbound.ErrDatapaths):
		err = fmt.Errorf("%w: delete Subnets or Vpcs", err)
	case errors.Is(err, northbound.ErrWaiting):
		err = fmt.Errorf("%w: %s", northbound.ErrWaiting, noRouterOf(lookup.VpcOf(in.subnet), in.vpc))
	}
	return result{err: errors.Join(err, noRouter, noQuerier), querier: checked.querier, connected: err == nil, router: router}
}

// noRouterOf returns the cause for the users of a subnet whose VPC has no router; vpc is nil if the cache does not have it.
func noRouterOf(name string, vpc *kubeovnv1.Vpc) string {
	message := fmt.Sprintf("VPC %s has no router yet", name)
	if why := withoutRouter(vpc); why != "" {
		message += ": " + why
	}
	return message
}

// withoutRouter returns the message of the condition Validated of a VPC that has no router, "" for another VPC.
func withoutRouter(vpc *kubeovnv1.Vpc) string {
	if vpc == nil || vpc.Status.Standby {
		return ""
	}
	c := apimeta.FindStatusCondition(vpc.Status.Conditions, kubeovnv1.ConditionValidated)
	if c == nil || c.Status != metav1.ConditionFalse {
		return ""
	}
	return c.Message
}

// tell updates the addresses of a subnet in the allocator. It returns a problem if, since the check, a port got an address that the change
// would cut off. It does nothing if the allocator has the same network already, because an update wakes all pods that wait for an address.
func (r *Reconciler) tell(s *kubeovnv1.Subnet, network validation.Network) (*validation.Problem, error) {
	if r.allocatorHas(s.Name, network) {
		return nil, nil
	}
	held, err := r.Allocator.ChangeSubnet(s.Name, ipam.Subnet(network), func(h ipam.Holder) bool {
		return s.Name != kubeovnv1.JoinSubnet && !isOwn(s.Name, h.Port) &&
			!network.Assignable(h.Address)
	})
	if err != nil {
		return nil, fmt.Errorf("update the allocator: %w", err)
	}
	if len(held) > 0 {
		return cutOff(s, network, held), nil
	}
	r.allocatorNetworks.Store(s.Name, fmt.Sprint(network))
	return nil, nil
}

// allocatorHas reports whether the allocator has exactly this network for a subnet.
func (r *Reconciler) allocatorHas(name string, network validation.Network) bool {
	last, ok := r.allocatorNetworks.Load(name)
	return ok && last == fmt.Sprint(network) && r.Allocator.HasSubnet(name)
}

// finish removes the rows and the finalizer of a deleted subnet once no address of it is in use. Until then the subnet stays applied, so
// that ports with its addresses keep working.
func (r *Reconciler) finish(ctx context.Context, subnet *kubeovnv1.Subnet) error {
	if err := errors.Join(r.releaseQuerier(ctx, subnet), r.Routers.Release(ctx, subnet)); err != nil {
		return err
	}
	if err := r.remove(ctx, subnet.Name); err != nil {
		return err
	}
	r.lastDefaults.Delete(subnet.Name)
	return k8s.RemoveFinalizer(ctx, r.Client, subnet)
}

// remove deletes a subnet from the allocator and its rows from the database. It is idempotent.
func (r *Reconciler) remove(ctx context.Context, name string) error {
	r.allocatorNetworks.Delete(name)
	r.notGrown.Delete(name)
	addressCounts.Delete(name)
	portCounts.Delete(name)
	if r.Allocator.HasSubnet(name) {
		logr.FromContextOrDiscard(ctx).V(1).Info("freed all addresses of a deleted subnet", "subnet", name)
	}
	r.Allocator.DeleteSubnet(name)
	if err := r.Northbound.Apply(ctx, translate.SubnetOwner(name), nil); err != nil {
		return fmt.Errorf("delete the switch of subnet %s: %w", name, err)
	}
	return nil
}

// held returns the number of addresses of a subnet that are in use, without the subnet's own ones.
func (r *Reconciler) held(name string) float64 {
	usage := r.Allocator.Usage(name)
	querier, _ := r.Allocator.Lookup(translate.QuerierHolder(name))
	router, _ := r.Allocator.Lookup(translate.InterconnectionHolder(name))
	return usage.IPv4().Using + usage.IPv6().Using - float64(len(querier.Addresses)+len(router.Addresses))
}
