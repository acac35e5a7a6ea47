// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/kiln-net/kiln/controllers/operator/certs"
	"github.com/kiln-net/kiln/controllers/operator/render"
)

// ownedKinds are the kinds of all objects that phases apply, except Secrets and policyKinds. The operator prunes objects of these kinds.
func ownedKinds() []client.Object {
	return []client.Object{
		&corev1.ServiceAccount{}, &corev1.Service{}, &corev1.ConfigMap{},
		&appsv1.StatefulSet{}, &appsv1.Deployment{}, &appsv1.DaemonSet{},
		&policyv1.PodDisruptionBudget{},
		&rbacv1.Role{}, &rbacv1.RoleBinding{}, &rbacv1.ClusterRole{}, &rbacv1.ClusterRoleBinding{},
	}
}

// prune deletes objects that earlier passes applied and this pass did not. It finds objects by label and deletes only
// objects that the OVNCluster owns.
func (r *Reconciler) prune(ctx context.Context, p *pass) error {
	kinds := ownedKinds()
	if r.policiesWatched {
		kinds = append(kinds, policyKinds()...)
	}
	for _, kind := range kinds {
		gvk, err := apiutil.GVKForObject(kind, r.Scheme())
		if err != nil {
			return fmt.Errorf("find the kind of %T: %w", kind, err)
		}
		empty, err := r.Scheme().New(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
		if err != nil {
			return fmt.Errorf("make an empty list of %s: %w", gvk.Kind, err)
		}
		list := empty.(client.ObjectList)
		if err := r.List(ctx, list, client.MatchingLabels{render.ManagedByLabel: render.ManagedBy}); err != nil {
			return fmt.Errorf("list %s: %w", gvk.Kind, err)
		}
		err = meta.EachListItem(list, func(o runtime.Object) error {
			object := o.(client.Object)
			return r.pruneOne(ctx, p, objectKey{gvk, client.ObjectKeyFromObject(object)}, object)
		})
		if err != nil {
			return err
		}
	}
	return r.pruneSecrets(ctx, p)
}

func (r *Reconciler) pruneOne(ctx context.Context, p *pass, key objectKey, o client.Object) error {
	if p.inventory[key] || !metav1.IsControlledBy(o, p.cluster) || !o.GetDeletionTimestamp().IsZero() {
		return nil
	}
	return r.remove(ctx, o, key.gvk.Kind)
}

// remove deletes exactly this object, not a new object with the same name.
func (r *Reconciler) remove(ctx context.Context, o client.Object, kind string, options ...client.DeleteOption) error {
	uid := o.GetUID()
	options = append(options, client.Preconditions{UID: &uid}, client.PropagationPolicy(metav1.DeletePropagationBackground))
	err := r.Delete(ctx, o, options...)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete %s %s: %w", kind, o.GetName(), err)
	}
	return nil
}

// pruneSecrets is prune for Secrets.
func (r *Reconciler) pruneSecrets(ctx context.Context, p *pass) error {
	for _, name := range certs.SecretNames() {
		secret, err := r.secrets.Cached(ctx, name)
		if err != nil {
			return err
		}
		if secret == nil {
			continue
		}
		if err := r.pruneOne(ctx, p, objectKey{secretKind, client.ObjectKeyFromObject(secret)}, secret); err != nil {
			return err
		}
	}
	return nil
}
