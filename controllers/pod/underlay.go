// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"strconv"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/pod/address"
	"github.com/kiln-net/kiln/internal/k8s"
)

// underlay is the physical network of a subnet, and the tag there.
type underlay struct {
	network string
	tag     int
}

// underlay returns the physical network of an underlay subnet, with the tag that the subnet has; nil for another subnet. The error is a *problem if the Vlan does not exist,
// or has no valid tag.
func (r *Reconciler) underlay(ctx context.Context, s *kubeovnv1.Subnet) (*underlay, error) {
	if s.Spec.Vlan == "" {
		return nil, nil //nolint:nilnil // an overlay subnet has none
	}
	vlan, err := k8s.Find[kubeovnv1.Vlan](ctx, r.Client, client.ObjectKey{Name: s.Spec.Vlan}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("get Vlan %s: %w", s.Spec.Vlan, err)
	}
	if vlan == nil {
		return nil, &address.Problem{Message: fmt.Sprintf("Vlan %s of subnet %s does not exist", s.Spec.Vlan, s.Name), Subnets: []string{s.Name}}
	}
	tag, valid := k8s.ValidTag(vlan)
	if !valid {
		what := fmt.Sprintf("Vlan %s of subnet %s", s.Spec.Vlan, s.Name)
		checked := apimeta.FindStatusCondition(vlan.Status.Conditions, kubeovnv1.ConditionValidated) != nil
		return nil, &address.Problem{Message: k8s.WhyNotValid(what, vlan.Status.Conditions, vlan.Generation), Subnets: []string{s.Name}, Quiet: !checked}
	}
	return &underlay{vlan.Spec.Provider, tag}, nil
}

// tagOf returns as text the tag that subnets of a Vlan have, or the cause why they have none.
func tagOf(vlan *kubeovnv1.Vlan) string {
	tag, valid := k8s.ValidTag(vlan)
	if !valid {
		return k8s.WhyNotValid("", vlan.Status.Conditions, vlan.Generation)
	}
	return strconv.Itoa(tag)
}

// onVlan enqueues the pods of a Vlan's subnets if their results change, and wakes all waiting pods if any Vlan changes.
func (r *Reconciler) onVlan() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(context.Context, event.CreateEvent, k8s.Queue) { r.pending.wakeAll() },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q k8s.Queue) {
			before, after := e.ObjectOld.(*kubeovnv1.Vlan), e.ObjectNew.(*kubeovnv1.Vlan)
			if tagOf(before) == tagOf(after) {
				return
			}
			r.pending.wakeAll()
			subnets, err := r.Networks.SubnetsOfVlan(ctx, after.Name)
			if err != nil {
				return // the cache is stopping
			}
			for i := range subnets {
				r.enqueuePodsOf(ctx, subnets[i].Name, q)
			}
		},
	}
}
