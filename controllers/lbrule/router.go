// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lbrule

import (
	"cmp"
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/validation"
)

// prepareRouter finds the addresses, the VPC and the endpoints of a RouterLBRule, and the problems of its spec. If the selected pods
// are in another VPC, the Service stays, by which they are found, but nodes do not serve its addresses.
//
// Pods of the VPC reach the rule through the VPC's load balancers. Clients outside reach it through nodes, which are in the default VPC:
// for rules of that VPC, nodes get a Service with external IPs. They reach a rule of another VPC through the external port of its router.
func (r *controller) prepareRouter(ctx context.Context, rule *rule, o *kubeovnv1.RouterLBRule, s *state) (err error) {
	if s.problem = validation.RouterLBRule(&o.Spec); s.problem != nil {
		return nil
	}
	s.in.Vpc = vpcOfRouter(o)
	s.outside = s.in.Vpc == kubeovnv1.DefaultVpc
	r.watch(rule, s, "vpc/"+s.in.Vpc)
	if err := r.front(ctx, o, rule.isLast(), s); err != nil {
		return err
	}
	if s.problem == nil && len(s.waiting) == 0 {
		if s.problem, err = r.addressConflict(ctx, rule, s); err != nil {
			return err
		}
	}
	if err := r.needNamespace(ctx, rule, s); err != nil {
		return err
	}
	if s.refused = s.problem != nil || len(s.waiting) > 0; s.refused { // its addresses are missing or belong to another owner
		return nil
	}
	elsewhere, err := r.elsewhere(ctx, rule, s)
	if err != nil {
		return err
	}
	if s.hidden, s.refused = elsewhere != nil, elsewhere != nil; s.hidden && rule.last() != nil {
		s.problem = elsewhere
		return nil // the Service of the last valid spec stays
	}
	service, err := r.ensureService(ctx, rule, s)
	if err != nil || s.problem != nil {
		return err
	}
	s.problem = elsewhere
	if service != nil {
		err = r.writeSlices(ctx, service, s)
	}
	return err
}

// elsewhere finds the endpoints of a rule with a selector. It returns a problem if the selected pods are in another VPC than the rule's.
func (r *controller) elsewhere(ctx context.Context, rule *rule, s *state) (*validation.Problem, error) {
	if len(s.in.Endpoints) > 0 {
		return nil, nil
	}
	selected, err := r.vpcOfChanged(ctx, rule)
	if err != nil {
		return nil, err
	}
	found, err := r.find(ctx, serviceKey(rule), s)
	vpc := cmp.Or(selected, found)
	if err != nil || vpc == "" || vpc == s.in.Vpc {
		return nil, err
	}
	return validation.Invalid(
		"vpc: pods that selector selects are in VPC %s, and not in %s: set vpc to the pods', or select others", vpc, s.in.Vpc), nil
}

func vpcOfRouter(o *kubeovnv1.RouterLBRule) string { return cmp.Or(o.Spec.VPC, kubeovnv1.DefaultVpc) }

// front finds the addresses of a rule, and checks that its VPC exists. last: the spec is the rule's last valid one.
func (r *controller) front(ctx context.Context, o *kubeovnv1.RouterLBRule, last bool, s *state) error {
	vpc, err := k8s.Find[kubeovnv1.Vpc](ctx, r.Client, client.ObjectKey{Name: s.in.Vpc}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return fmt.Errorf("get Vpc %s: %w", s.in.Vpc, err)
	}
	if vpc == nil {
		s.waiting = append(s.waiting, fmt.Sprintf("Vpc %s, which does not exist: create it, or name another one", s.in.Vpc))
	}
	eip, err := k8s.Find[kubeovnv1.OvnEip](ctx, r.Client, client.ObjectKey{Name: o.Spec.OvnEip}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return fmt.Errorf("get OvnEip %s: %w", o.Spec.OvnEip, err)
	}
	allocation, held := r.Allocator.Lookup(translate.OvnEipHolder(o.Spec.OvnEip))
	switch {
	case eip == nil:
		s.waiting = append(s.waiting, fmt.Sprintf("OvnEip %s, which does not exist: create it, or name another one", o.Spec.OvnEip))
	case lookup.DeletedEip(eip, last) != nil:
		s.problem = lookup.DeletedEip(eip, last)
	case cmp.Or(eip.Spec.Type, kubeovnv1.OvnEipTypeNAT) != kubeovnv1.OvnEipTypeNAT:
		s.problem = validation.Invalid("ovnEip: OvnEip %s is of type %s: name one of type %s", eip.Name, eip.Spec.Type, kubeovnv1.OvnEipTypeNAT)
	case !held:
		waiting := fmt.Sprintf("OvnEip %s to have its addresses", eip.Name)
		if why, _ := k8s.WhyNotReady(eip.Status.Conditions, eip.Generation); why != "" {
			waiting += ": " + why
		}
		s.waiting = append(s.waiting, waiting)
	}
	s.in.VIPs = allocation.Addresses
	// In the default VPC the switch of the external subnet has the load balancers, and nodes serve the rule.
	s.in.OnRouter = s.in.Vpc != kubeovnv1.DefaultVpc &&
		northbound.Get[nb.LogicalRouterPort](r.Northbound, translate.ExternalPortRef(s.in.Vpc, allocation.Subnet)) != nil
	return r.shadowed(ctx, o.Spec.OvnEip, allocation.Subnet, s)
}

// shadowed sets a problem if an address is also in another subnet of the rule's VPC: a port with that address would become unreachable.
func (r *controller) shadowed(ctx context.Context, eip, external string, s *state) error {
	for _, vip := range s.in.VIPs {
		subnet, err := r.subnetWith(ctx, s.in.Vpc, vip)
		if err != nil {
			return err
		}
		if subnet != "" && subnet != external && s.problem == nil {
			s.problem = validation.InUse("ovnEip: %s of OvnEip %s is in subnet %s of VPC %s as well: name an OvnEip with other addresses", vip, eip, subnet, s.in.Vpc)
		}
	}
	return nil
}
