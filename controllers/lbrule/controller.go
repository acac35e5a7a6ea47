// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package lbrule turns SwitchLBRules and RouterLBRules into load balancers whose endpoints OVN checks.
package lbrule

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/grants"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/address/vipusers"
	"github.com/kiln-net/kiln/internal/interest"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/reconciler"
	"github.com/kiln-net/kiln/internal/validation"
)

// Reconciler reconciles SwitchLBRules and RouterLBRules to load balancers. A Service of each rule selects the pods. Vips hold the addresses
// that a SwitchLBRule needs in subnets, and the source addresses of health checks; rules own them jointly, and the last owner deletes them.
// A RouterLBRule has the addresses of an OvnEip.
type Reconciler struct {
	Client client.Client
	// Live reads pods from the API server, not from the cache.
	Live       client.Reader
	Northbound *northbound.Engine
	Allocator  *ipam.Allocator
	Networks   *lookup.Networks
	Services   *lookup.Services
	Vips       *vipusers.Index
	Grants     *grants.Rules
	Recorder   events.EventRecorder
	Gate       *reconciler.StartGate
}

// controller is the Reconciler for one kind of rules.
type controller struct {
	*Reconciler

	kind string
	// interest has the rules by the objects that they depend on. Keys are `vip/…`, `vpc/…`, `namespace/…`, `switch/…` (a subnet that is named) and
	// `use/…` (the holders of addresses of a subnet).
	interest interest.Index[string, string]
}

// state is the result of a reconciliation: the inputs of the load balancers, and problems.
type state struct {
	in      translate.LBRuleInputs
	service string // namespace and name
	problem *validation.Problem
	waiting []string // descriptions of missing objects
	// served: the load balancers are those of the spec. valid: the spec is valid, and what it needs exists.
	served, valid bool
	// retained: the problem is of the current spec, and the last valid one is served.
	retained bool
	// refused: the addresses are missing or belong to another owner, so that the rule cannot stay served.
	refused bool
	// trial: no object may be changed.
	trial bool
	// formerVpc is the VPC of the pods that the last valid spec selects.
	formerVpc string
	// outside: nodes and clients outside reach the rule as well, through its Service.
	outside bool
	// hidden: nodes do not serve the addresses, although outside is true.
	hidden bool
	checks checks
	vips   map[string]*kubeovnv1.Vip // Vips that the rule needs, by name
	keys   map[string]bool           // keys that the rule is registered for in interest
	err    error
}

// selectedRetry is the interval of attempts with a spec that is not applied and selects other pods: no Service selects them, so no event reports them.
const selectedRetry = time.Minute

// Reconcile brings one rule's load balancers, its Service and its Vips up to date.
func (r *controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	rule := newRule(r.kind)
	err := r.Client.Get(ctx, req.NamespacedName, rule.Object)
	if client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("get %s: %w", r.kind, err)
	}
	if err != nil || rule.GetDeletionTimestamp() != nil {
		r.interest.Set(req.Name)
		r.unmeasure(req.Name)
		// The garbage collector deletes the Service and the Vips of the rule.
		return ctrl.Result{}, r.withdraw(ctx, req.Name)
	}
	s := &state{vips: map[string]*kubeovnv1.Vip{}, keys: map[string]bool{}}
	s.err = r.serve(ctx, rule, s)
	if last := rule.last(); last != nil && s.err == nil && !s.served {
		s = r.retain(ctx, last, s)
	}
	if s.err == nil && s.refused && !s.served {
		s.err = r.refuse(ctx, rule, s)
	}
	r.interest.Set(req.Name, slices.Collect(maps.Keys(s.keys))...)
	r.measure(req.Name, s)
	var result ctrl.Result
	if s.retained && rule.changesPods() {
		result.RequeueAfter = k8s.Periodic(selectedRetry)
	}
	return result, errors.Join(k8s.Unless(s.err, northbound.ErrWaiting), r.patchStatus(ctx, rule, s))
}

func (r *controller) withdraw(ctx context.Context, name string) error {
	if err := r.Northbound.Apply(ctx, translate.LBRuleOwner(r.kind, name), nil); err != nil {
		return fmt.Errorf("withdraw load balancers: %w", err)
	}
	return nil
}

// serve applies the spec of the rule, unless it has a problem or waits: then nothing changes.
func (r *controller) serve(ctx context.Context, rule *rule, s *state) error {
	s.in = translate.LBRuleInputs{
		Kind: r.kind, Name: rule.GetName(), Ports: portsOf(rule.spec), Sticky: rule.spec.SessionAffinity == corev1.ServiceAffinityClientIP,
		Endpoints: ipfamily.ValidAddrs(rule.spec.Endpoints...),
	}
	var err error
	switch o := rule.Object.(type) {
	case *kubeovnv1.SwitchLBRule:
		err = r.prepareSwitch(ctx, rule, o, s)
	case *kubeovnv1.RouterLBRule:
		err = r.prepareRouter(ctx, rule, o, s)
	}
	if err != nil || s.problem != nil || s.refused {
		return err
	}
	s.valid = true
	if err := r.monitor(ctx, rule, s); err != nil {
		return err
	}
	if s.in.Sticky {
		s.in.Before = northbound.Of[nb.LoadBalancer](r.Northbound, rule.owner())
	}
	if err := r.Northbound.Apply(ctx, rule.owner(), translate.LBRule(s.in)); err != nil {
		return fmt.Errorf("apply load balancers: %w", err)
	}
	s.served = true
	return r.releaseVips(ctx, rule, s.vips)
}

// prepareSwitch finds the addresses, the VPC and the endpoints of a SwitchLBRule, and the problems of its spec.
func (r *controller) prepareSwitch(ctx context.Context, rule *rule, o *kubeovnv1.SwitchLBRule, s *state) error {
	if s.in.VIPs, s.problem = validation.LBRuleVIPs(o.Spec.VIP); s.problem == nil {
		s.problem = validation.LBRuleBackends(rule.spec)
	}
	if s.problem != nil {
		return nil
	}
	if err := r.try(ctx, rule, s); err != nil || s.problem != nil || s.refused {
		return err
	}
	service, err := r.ensureService(ctx, rule, s)
	if err != nil || s.problem != nil {
		return err
	}
	if err := r.resolve(ctx, rule, service, s); err != nil || s.problem != nil {
		return err
	}
	return r.checkAddresses(ctx, rule, s)
}

// checkAddresses finds other owners of the addresses of a SwitchLBRule, and reserves addresses of subnets.
func (r *controller) checkAddresses(ctx context.Context, rule *rule, s *state) (err error) {
	if s.problem, err = r.addressConflict(ctx, rule, s); err == nil && s.problem == nil {
		err = r.reserve(ctx, rule, s)
	}
	s.refused = s.problem != nil
	return err
}

// portsOf returns the ports of a rule with defaults.
func portsOf(spec *kubeovnv1.LBRuleBackends) []translate.LBRulePort {
	ports := make([]translate.LBRulePort, 0, len(spec.Ports))
	for i := range spec.Ports {
		p := &spec.Ports[i]
		protocol := corev1.ProtocolTCP
		if p.Protocol != "" {
			protocol = corev1.Protocol(p.Protocol)
		}
		port := translate.LBRulePort{
			Name: validation.LBRulePortName(p), Protocol: protocol, Port: uint16(p.Port), Target: uint16(p.TargetPort), //nolint:gosec // the CRD takes 1 to 65535
		}
		if port.Target == 0 {
			port.Target = port.Port
		}
		ports = append(ports, port)
	}
	return ports
}

// resolve finds the endpoints and the VPC of the rule. The VPC comes from the annotations of the rule, or else from the pods, or else,
// while there are none, from the annotation that the Service controller wrote on the rule's Service, or from the pods of the last valid spec.
func (r *controller) resolve(ctx context.Context, rule *rule, service *corev1.Service, s *state) error {
	vpc, err := r.vpcOfChanged(ctx, rule)
	if err != nil {
		return err
	}
	if service != nil {
		found, err := r.find(ctx, client.ObjectKeyFromObject(service), s)
		if err != nil {
			return err
		}
		vpc = cmp.Or(vpc, found, service.Annotations[kubeovnv1.AnnotationVpc.Key()])
	}
	named, problem, err := r.namedVpc(ctx, rule, s)
	if s.problem = problem; problem != nil || err != nil {
		return err
	}
	s.in.Vpc = cmp.Or(named, vpc, s.formerVpc, kubeovnv1.DefaultVpc)
	r.watch(rule, s, "vpc/"+s.in.Vpc)
	return nil
}

// find adds the EndpointSlices of a Service and returns the VPC of the pods in them, or "" if there are none.
func (r *controller) find(ctx context.Context, service client.ObjectKey, s *state) (vpc string, err error) {
	var list discoveryv1.EndpointSliceList
	err = r.Client.List(ctx, &list, client.InNamespace(service.Namespace), client.MatchingFields{indexSlices: service.Name}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return "", fmt.Errorf("list EndpointSlices: %w", err)
	}
	for i := range list.Items {
		s.in.Slices = append(s.in.Slices, &list.Items[i])
	}
	slices.SortFunc(s.in.Slices, func(a, b *discoveryv1.EndpointSlice) int { return strings.Compare(a.Name, b.Name) })
	if vpc, err = lookup.VpcOfEndpoints(ctx, r.Client, r.Live, s.in.Slices); err != nil {
		return "", fmt.Errorf("find the VPC of the endpoints: %w", err)
	}
	return vpc, nil
}

// namedVpc returns the VPC that a rule's annotations name, directly or by a subnet.
func (r *controller) namedVpc(ctx context.Context, rule *rule, s *state) (string, *validation.Problem, error) {
	if vpc := rule.GetAnnotations()[kubeovnv1.AnnotationLogicalRouter.Key()]; vpc != "" {
		return vpc, nil, nil
	}
	name := rule.GetAnnotations()[kubeovnv1.AnnotationLogicalSwitch.Key()]
	if name == "" {
		return "", nil, nil
	}
	r.watch(rule, s, "switch/"+name)
	subnet, err := k8s.Find[kubeovnv1.Subnet](ctx, r.Client, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return "", nil, fmt.Errorf("get subnet %s: %w", name, err)
	}
	if subnet == nil {
		return "", validation.Problemf(validation.ReasonSubnetMissing,
			"subnet %s, which annotation %s names, does not exist: create it, or name another one", name, kubeovnv1.AnnotationLogicalSwitch.Key()), nil
	}
	return lookup.VpcOf(k8s.Applied(subnet)), nil, nil
}

// watch registers the rule for a requeue when the object of the key changes. Call it before reading the object, or a change can be missed.
func (r *controller) watch(rule *rule, s *state, key string) {
	s.keys[key] = true
	r.interest.Add(rule.GetName(), key)
}

// endpoints returns the addresses of the endpoints that OVN can check, sorted and without duplicates.
func (s *state) endpoints() []netip.Addr {
	var all []netip.Addr
	for _, vip := range s.in.VIPs {
		for _, port := range s.in.Ports {
			if !translate.Monitored(port.Protocol) {
				continue
			}
			for _, e := range s.in.EndpointsOf(vip, port) {
				all = append(all, e.Addr())
			}
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}
