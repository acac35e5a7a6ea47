// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"context"
	"fmt"
	"slices"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/validation"
)

// maxUnbound is the number of namespaces that a message of the condition NamespacesBound names.
const maxUnbound = 10

// unbound returns a message about the namespaces that a subnet names or selects but does not serve, because its VPC does not list them. It
// returns "" if there are none.
func unbound(named []string, vpc *kubeovnv1.Vpc) string {
	if vpc == nil || vpc.Name == kubeovnv1.DefaultVpc {
		return ""
	}
	listed := sets.New(vpc.Spec.Namespaces...)
	names := slices.DeleteFunc(slices.Clone(named), listed.Has)
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("namespaces: the subnet does not serve %s, which VPC %s does not list: add them to the VPC's namespaces, or do not name or select them here",
		k8s.Some(names, maxUnbound), vpc.Name)
}

// setNamespacesBound sets the condition NamespacesBound of a subnet of a custom VPC, and removes it from other subnets.
func (r *Reconciler) setNamespacesBound(in inputs) {
	conditions := &in.subnet.Status.Conditions
	if lookup.VpcOf(in.subnet) == kubeovnv1.DefaultVpc {
		apimeta.RemoveStatusCondition(conditions, kubeovnv1.ConditionNamespacesBound)
		return
	}
	before := slices.Clone(*conditions)
	c := metav1.Condition{
		Type: kubeovnv1.ConditionNamespacesBound, Status: metav1.ConditionTrue, Reason: kubeovnv1.ReasonAllInForce,
		Message: "the subnet serves every namespace that it names or selects",
	}
	if message := unbound(in.named, in.vpc); message != "" {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, validation.ReasonNamespaceTaken, message
	}
	k8s.SetConditions(conditions, in.subnet.Generation, c)
	k8s.WarnAnew(r.Recorder, in.subnet, before, *conditions, c.Type)
}

// setPodsPlaced sets the condition PodsPlaced of a subnet that binds namespaces, and removes it from other subnets.
func (r *Reconciler) setPodsPlaced(ctx context.Context, in inputs) error {
	conditions := &in.subnet.Status.Conditions
	if len(in.named) == 0 || in.subnet.Name == kubeovnv1.DefaultSubnet {
		apimeta.RemoveStatusCondition(conditions, kubeovnv1.ConditionPodsPlaced)
		return nil
	}
	c, err := r.Namespaces.Placed(ctx, in.named)
	if err != nil {
		return err
	}
	before := slices.Clone(*conditions)
	k8s.SetConditions(conditions, in.subnet.Generation, c)
	if wasFalse := apimeta.IsStatusConditionFalse(before, c.Type); !wasFalse { // later messages differ in the number only
		k8s.WarnAnew(r.Recorder, in.subnet, before, *conditions, c.Type)
	}
	return nil
}

// isBoundOtherwise reports whether a subnet's condition NamespacesBound is stale with respect to its VPC.
func (r *Reconciler) isBoundOtherwise(ctx context.Context, subnet *kubeovnv1.Subnet, vpc *kubeovnv1.Vpc) bool {
	c := apimeta.FindStatusCondition(subnet.Status.Conditions, kubeovnv1.ConditionNamespacesBound)
	named, err := r.Namespaces.Selected(ctx, subnet)
	message := unbound(named, vpc)
	return err != nil || c == nil || (message == "") != (c.Status == metav1.ConditionTrue) || message != "" && message != c.Message
}

// binding enqueues the subnets that name a namespace, or may select it: it was created or deleted, or its labels have changed.
func (r *Reconciler) binding(ctx context.Context, namespace client.Object) []reconcile.Request {
	return k8s.Requests(r.bindingNamed(ctx, namespace.GetName())...)
}

// bindingNamed returns the subnets that name or may select a namespace.
func (r *Reconciler) bindingNamed(ctx context.Context, namespace string) []string {
	names, err := r.Namespaces.Naming(ctx, namespace)
	if err != nil {
		return nil // the cache is stopping
	}
	return names
}
