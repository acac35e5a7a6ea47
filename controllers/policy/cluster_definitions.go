// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"

	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/podset"
)

// definitionState is the state of an optional kind.
type definitionState int

const (
	stateUnknown definitionState = iota
	// stateFollowed: the kind is defined, and the cache has its objects.
	stateFollowed
	// stateUndefined: the kind is not defined.
	stateUndefined
)

// syncPatience is the time limit for the first sync of the informer of a new kind. After it, the definition is read again.
const syncPatience = 10 * time.Second

// definition returns the name of the CustomResourceDefinition of a kind.
func (k clusterKind) definition() string { return k.resource + "." + v1alpha1.GroupName }

var definitionKind = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}

// Definition returns an empty CustomResourceDefinition. The cache holds only the metadata of definitions.
func Definition() *metav1.PartialObjectMetadata {
	definition := &metav1.PartialObjectMetadata{}
	definition.SetGroupVersionKind(definitionKind)
	return definition
}

// setupOptional adds the controllers of optional kinds, and the controller of their definitions.
func (r *Reconciler) setupOptional(mgr ctrl.Manager) error {
	ours := predicate.NewPredicateFuncs(func(o client.Object) bool { return r.defines(o.GetName()) != nil })
	err := ctrl.NewControllerManagedBy(mgr).
		Named("policydefinition").
		WatchesMetadata(Definition(), &handler.EnqueueRequestForObject{}, builder.WithPredicates(ours)).
		WatchesRawSource(source.Func(func(_ context.Context, q k8s.Queue) error {
			for _, c := range r.optional { // a missing definition has no event
				q.Add(k8s.Request(c.kind.definition()))
			}
			return nil
		})).
		WithOptions(r.Gate.Workers(1)).
		Complete(r.Gate.Reconciler(reconcile.Func(func(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
			return ctrl.Result{}, r.reconcileDefinition(ctx, mgr, r.defines(req.Name))
		})))
	for _, c := range r.optional {
		err = errors.Join(err, c.setup(mgr))
	}
	return err
}

// defines returns the controller of the kind that a definition defines, nil if it is not a supported kind.
func (r *Reconciler) defines(definition string) *clusterReconciler {
	for _, c := range r.optional {
		if c.kind.definition() == definition {
			return c
		}
	}
	return nil
}

// reconcileDefinition starts or stops the informer of a kind, depending on its definition. If the API server does not serve the kind yet,
// it returns an error, so that it is retried.
func (r *Reconciler) reconcileDefinition(ctx context.Context, mgr ctrl.Manager, c *clusterReconciler) error {
	version, err := r.defined(ctx, mgr.GetAPIReader(), c.kind)
	if err != nil {
		return err
	}
	if version == nil {
		return c.forget(ctx, mgr.GetCache())
	}
	if there, err := served(mgr.GetRESTMapper(), c.kind, *version); err != nil || !there {
		return errors.Join(err, fmt.Errorf("version %s of kind %s is not served yet", version.name, c.kind.name))
	}
	return c.follow(ctx, mgr.GetCache(), *version)
}

// follow starts the informer of a version of the kind. It enqueues the existing policies, and the owners of existing rows for cleanup. While it
// changes the version, the rows of policies stay.
func (r *clusterReconciler) follow(ctx context.Context, informers cache.Informers, version kindVersion) error {
	r.mu.RLock()
	followed, same := r.state == stateFollowed, r.version.name == version.name
	r.mu.RUnlock()
	switch {
	case followed && same:
		return nil
	case !same:
		if err := r.stop(ctx, informers, stateUnknown); err != nil {
			return err
		}
		r.become(stateUnknown, version)
	}
	synced, cancel := context.WithTimeout(ctx, syncPatience)
	defer cancel()
	informer, err := informers.GetInformer(synced, version.object())
	if err != nil {
		return fmt.Errorf("follow kind %s: %w", r.kind.name, err)
	}
	r.become(stateFollowed, version) // before AddEventHandler enqueues existing policies: Reconcile skips an unknown kind
	if _, err := informer.AddEventHandler(r.events()); err != nil {
		r.become(stateUnknown, version)
		return fmt.Errorf("follow kind %s: %w", r.kind.name, err)
	}
	r.enqueueOwners()
	return nil
}

// forget removes the informer of a kind that is not defined, and enqueues the owners of its rows for cleanup.
func (r *clusterReconciler) forget(ctx context.Context, informers cache.Informers) error {
	if err := r.stop(ctx, informers, stateUndefined); err != nil {
		return err
	}
	r.enqueueOwners()
	return nil
}

// stop removes the informers of all versions.
func (r *clusterReconciler) stop(ctx context.Context, informers cache.Informers, state definitionState) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state = state
	for _, version := range r.kind.versions {
		if err := informers.RemoveInformer(ctx, version.object()); err != nil {
			return fmt.Errorf("stop watching kind %s: %w", r.kind.name, err)
		}
	}
	return nil
}

func (r *clusterReconciler) become(state definitionState, version kindVersion) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state, r.version = state, version
}

func (r *clusterReconciler) enqueueOwners() {
	for _, owner := range r.Northbound.Owners(r.kind.name) {
		r.requests.Add(owner.Name)
	}
}

// events enqueues policies that are created, deleted, or change their spec or until when they log.
func (r *clusterReconciler) events() toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: r.event,
		UpdateFunc: func(before, after any) {
			if old, now := before.(client.Object), after.(client.Object); old.GetGeneration() != now.GetGeneration() || logsUntil(old) != logsUntil(now) {
				r.event(after)
			}
		},
		DeleteFunc: r.event,
	}
}

func (r *clusterReconciler) event(o any) {
	if name, err := toolscache.DeletionHandlingObjectToName(o); err == nil {
		r.requests.Add(name.Name)
	}
}

// served reports whether the API server serves a version of a kind.
func served(mapper meta.RESTMapper, k clusterKind, version kindVersion) (bool, error) {
	_, err := mapper.RESTMapping(schema.GroupKind{Group: v1alpha1.GroupName, Kind: k.name}, version.name)
	if meta.IsNoMatchError(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for kind %s: %w", k.name, err)
	}
	return true, nil
}

// defined returns the first known version that the definition of a kind serves, nil if there is none.
func (r *Reconciler) defined(ctx context.Context, reader client.Reader, k clusterKind) (*kindVersion, error) {
	// The cache answers for definitions that do not exist, which is the usual case.
	if err := r.Client.Get(ctx, client.ObjectKey{Name: k.definition()}, Definition()); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	definition := &unstructured.Unstructured{}
	definition.SetGroupVersionKind(definitionKind)
	if err := reader.Get(ctx, client.ObjectKey{Name: k.definition()}, definition); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	versions, _, err := unstructured.NestedSlice(definition.Object, "spec", "versions")
	if err != nil {
		return nil, fmt.Errorf("read definition %s: %w", k.definition(), err)
	}
	for i := range k.versions {
		if slices.ContainsFunc(versions, func(v any) bool {
			version, ok := v.(map[string]any)
			return ok && version["name"] == k.versions[i].name && version["served"] == true
		}) {
			return &k.versions[i], nil
		}
	}
	return nil, nil
}

// restoreOptional adds the sets that policies of optional kinds use.
func (r *Reconciler) restoreOptional(ctx context.Context, uses map[desired.Owner][]podset.Selector) error {
	for _, k := range clusterKinds {
		err := r.Client.Get(ctx, client.ObjectKey{Name: k.definition()}, Definition())
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("look for definition %s: %w", k.definition(), err)
		}
		if err != nil {
			continue
		}
		list, err := r.listOf(k)
		if err != nil {
			return err
		}
		if list == nil {
			continue
		}
		if err := r.Client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return fmt.Errorf("list %s: %w", k.resource, err)
		}
		err = meta.EachListItem(list, func(o runtime.Object) error {
			c := r.compileCluster(ctx, k, o.(client.Object))
			uses[c.Owner] = c.uses
			return nil
		})
		if err != nil {
			return fmt.Errorf("read %s: %w", k.resource, err)
		}
	}
	return nil
}

// listOf returns an empty list of the first version of a kind that the API server serves, nil if there is none.
func (r *Reconciler) listOf(k clusterKind) (client.ObjectList, error) {
	for _, version := range k.versions {
		if there, err := served(r.Client.RESTMapper(), k, version); err != nil || there {
			return version.list(), err
		}
	}
	return nil, nil
}
