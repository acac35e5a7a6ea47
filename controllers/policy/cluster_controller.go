// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/selection/podset"
)

// clusterReconciler keeps the ACLs and conditions of one kind of cluster-wide policies.
type clusterReconciler struct {
	*Reconciler

	kind clusterKind
	feed k8s.Feed
}

// optional are the controllers of the kinds whose definitions the cluster may not have. Each is added once its definition is there.
type optional struct {
	mu    sync.Mutex
	kinds map[string]*clusterReconciler // by kind
}

// get returns the controller of a kind, nil when it was not added.
func (o *optional) get(kind string) *clusterReconciler {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.kinds[kind]
}

// definition is the name of the CustomResourceDefinition of a kind.
func (k clusterKind) definition() string { return k.resource + "." + v1alpha1.GroupName }

var definitionKind = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}

// Definition is what is watched of CustomResourceDefinitions.
func Definition() *metav1.PartialObjectMetadata {
	definition := &metav1.PartialObjectMetadata{}
	definition.SetGroupVersionKind(definitionKind)
	return definition
}

// setupDefinitions adds the controller that adds those of optional kinds. It wakes for their definitions.
func (r *Reconciler) setupDefinitions(mgr ctrl.Manager) error {
	ours := predicate.NewPredicateFuncs(func(o client.Object) bool {
		return slices.ContainsFunc(clusterKinds, func(k clusterKind) bool { return k.definition() == o.GetName() })
	})
	err := ctrl.NewControllerManagedBy(mgr).
		Named("policydefinition").
		WatchesMetadata(Definition(), &handler.EnqueueRequestForObject{}, builder.WithPredicates(ours)).
		Complete(r.Gate.Reconciler(reconcile.Func(func(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
			return ctrl.Result{}, r.addKind(ctx, mgr, req.Name)
		})))
	if err != nil {
		return fmt.Errorf("set up the controller of definitions of policies: %w", err)
	}
	return nil
}

// served reports whether the API server has a kind.
func served(mapper meta.RESTMapper, k clusterKind) (bool, error) {
	_, err := mapper.RESTMapping(schema.GroupKind{Group: v1alpha1.GroupName, Kind: k.name}, k.version)
	if meta.IsNoMatchError(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for kind %s: %w", k.name, err)
	}
	return true, nil
}

// addKind adds the controller of the kind of a definition, unless that was done. A definition that is not served yet is an error: it is
// tried again.
func (r *Reconciler) addKind(ctx context.Context, mgr ctrl.Manager, definition string) error {
	i := slices.IndexFunc(clusterKinds, func(k clusterKind) bool { return k.definition() == definition })
	if i < 0 || r.optional.get(clusterKinds[i].name) != nil {
		return nil
	}
	k := clusterKinds[i]
	if has, err := r.defined(ctx, mgr.GetAPIReader(), k); err != nil || !has {
		return err
	}
	if there, err := served(mgr.GetRESTMapper(), k); err != nil || !there {
		return errors.Join(err, fmt.Errorf("kind %s is not served yet", k.name))
	}
	c := &clusterReconciler{Reconciler: r, kind: k}
	err := ctrl.NewControllerManagedBy(mgr).
		Named(strings.ToLower(k.name)).
		For(k.object(), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(c.all), builder.WithPredicates(k8s.Changed(viewNode))).
		WatchesRawSource(&c.feed).
		WatchesRawSource(k8s.Drift(r.Northbound, k.name)).
		WatchesRawSource(k8s.Orphans(mgr.GetCache(), r.Gate, k.object(), k8s.OwnersOf(r.Northbound, k.name))).
		Complete(c)
	if err != nil {
		return fmt.Errorf("add the controller of kind %s: %w", k.name, err)
	}
	r.optional.mu.Lock()
	defer r.optional.mu.Unlock()
	if r.optional.kinds == nil {
		r.optional.kinds = map[string]*clusterReconciler{}
	}
	r.optional.kinds[k.name] = c
	return nil
}

// defined reports whether a definition has the version of the kind that this process speaks.
func (r *Reconciler) defined(ctx context.Context, reader client.Reader, k clusterKind) (bool, error) {
	definition := &unstructured.Unstructured{}
	definition.SetGroupVersionKind(definitionKind)
	err := reader.Get(ctx, client.ObjectKey{Name: k.definition()}, definition)
	if err != nil {
		return false, client.IgnoreNotFound(err)
	}
	versions, _, err := unstructured.NestedSlice(definition.Object, "spec", "versions")
	if err != nil {
		return false, fmt.Errorf("read definition %s: %w", k.definition(), err)
	}
	return slices.ContainsFunc(versions, func(v any) bool {
		version, ok := v.(map[string]any)
		return ok && version["name"] == k.version && version["served"] == true
	}), nil
}

// viewNode is what cluster-wide policies look at in a node.
func viewNode(node *corev1.Node) string {
	return addressesOf(node) + " " + labels.Set(node.Labels).String()
}

// all are the policies of the kind.
func (r *clusterReconciler) all(ctx context.Context, _ client.Object) []reconcile.Request {
	list := r.kind.list()
	if err := r.Client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache is stopping
	}
	var requests []reconcile.Request
	_ = meta.EachListItem(list, func(o runtime.Object) error { // f has no error
		requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Name: o.(client.Object).GetName()}})
		return nil
	})
	return requests
}

// Reconcile makes the ACLs and conditions of one policy so.
func (r *clusterReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	owner := translate.ClusterPolicyOwner(r.kind.name, req.Name)
	policy := r.kind.object()
	err := r.Client.Get(ctx, req.NamespacedName, policy)
	if client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("get %s: %w", r.kind.name, err)
	}
	if err != nil {
		return r.apply(ctx, owner, func() compiled { return compiled{} })
	}
	compile := func() compiled { return clusterNetworkPolicy(r.kind.read(policy), r.Sets.Numbers, r.nodes(ctx)) }
	result, err := r.apply(ctx, owner, compile)
	return result, errors.Join(err, r.patchStatus(ctx, policy, compile(), err, result.RequeueAfter > 0))
}

// patchStatus says what of a policy cannot be expressed, and whether it is in force.
func (r *clusterReconciler) patchStatus(ctx context.Context, policy client.Object, c compiled, err error, waits bool) error {
	base := policy.DeepCopyObject().(client.Object)
	conditions := r.kind.conditions(policy)
	k8s.SetConditions(conditions, policy.GetGeneration(), conditionsOf(c, err, waits)...)
	if len(c.problems) > 0 && !k8s.SameMessage(*r.kind.conditions(base), *conditions, kubeovnv1.ConditionValidated) {
		k8s.Warn(r.Recorder, policy, ReasonNotExpressed, strings.Join(c.problems, "; "))
	}
	return k8s.PatchStatus(ctx, r.Client, base, policy)
}

// nodes finds the addresses of nodes with labels.
func (r *Reconciler) nodes(ctx context.Context) nodesOf {
	return func(selector *metav1.LabelSelector) ([]translate.PolicyBlock, error) {
		parsed, err := metav1.LabelSelectorAsSelector(selector)
		if err != nil {
			return nil, fmt.Errorf("label selector: %w", err)
		}
		var list corev1.NodeList
		if err := r.Client.List(ctx, &list, client.MatchingLabelsSelector{Selector: parsed}, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list nodes: %w", err)
		}
		var blocks []translate.PolicyBlock
		for i := range list.Items {
			for _, a := range nodeAddresses(&list.Items[i]) {
				prefix, _ := a.Prefix(a.BitLen()) // always valid
				blocks = append(blocks, translate.PolicyBlock{CIDR: prefix})
			}
		}
		return blocks, nil
	}
}

// restoreOptional adds what policies of optional kinds use.
func (r *Reconciler) restoreOptional(ctx context.Context, uses map[desired.Owner][]podset.Selector) error {
	for _, k := range clusterKinds {
		// The cache knows of what is not defined, which is all that most clusters ask.
		err := r.Client.Get(ctx, client.ObjectKey{Name: k.definition()}, Definition())
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("look for definition %s: %w", k.definition(), err)
		}
		if err != nil {
			continue
		}
		there, err := served(r.Client.RESTMapper(), k)
		if err != nil {
			return err
		}
		if !there {
			continue
		}
		list := k.list()
		if err := r.Client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return fmt.Errorf("list %s: %w", k.resource, err)
		}
		err = meta.EachListItem(list, func(o runtime.Object) error {
			c := clusterNetworkPolicy(k.read(o.(client.Object)), r.Sets.Numbers, r.nodes(ctx))
			uses[c.Owner] = c.uses
			return nil
		})
		if err != nil {
			return fmt.Errorf("read %s: %w", k.resource, err)
		}
	}
	return nil
}
