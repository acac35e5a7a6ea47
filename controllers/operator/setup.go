// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/certs"
	"github.com/kiln-net/kiln/controllers/operator/database"
	"github.com/kiln-net/kiln/controllers/operator/observed"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/controllers/operator/status"
	"github.com/kiln-net/kiln/controllers/operator/upgrade"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/workload"
)

// NewScheme returns a scheme of every type that the operator reads and writes.
func NewScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), kubeovnv1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("register kinds: %w", err)
	}
	return scheme, nil
}

// CacheOptions restrict the cache to the operator's namespace and, there, to its own objects.
func CacheOptions(namespace string) cache.Options {
	own := cache.ByObject{Label: labels.SelectorFromSet(labels.Set{render.ManagedByLabel: render.ManagedBy})}
	options := cache.Options{
		DefaultNamespaces: map[string]cache.Config{namespace: {}},
		DefaultTransform:  cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}: {Label: labels.SelectorFromSet(labels.Set{v1alpha1.PartOfLabel: v1alpha1.PartOf})},
		},
	}
	for _, kind := range append(ownedKinds(), policyKinds()...) {
		options.ByObject[kind] = own
	}
	return options
}

// SetupWithManager adds the reconciler and its watches to a manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	secrets, err := certs.NewSecrets(mgr, r.Namespace)
	if err != nil {
		return err
	}
	r.versions = status.NewVersions(r.Versions)
	r.applier = &workload.Applier{Client: r, APIReader: r.APIReader, Cache: caches{mgr.GetCache(), secrets}, FieldOwner: fieldOwner}
	r.upgrades = &upgrade.Replacer{}
	r.databases = &database.Runner{Admin: r.Admin, APIReader: r.APIReader, Recorder: r.Recorder, Versions: r.versions, Replacer: r.upgrades}
	r.kinds = &optionalKinds{Client: r, APIReader: r.APIReader, namespace: r.Namespace, cache: mgr.GetCache()}
	r.certificates = &certificates{APIReader: r.APIReader, namespace: r.Namespace, secrets: secrets, kinds: r.kinds}
	externalConfig, err := newExternalConfig(mgr, r.Namespace)
	if err != nil {
		return err
	}
	r.externalConfig = externalConfig
	options := k8s.Workers(1)
	options.CacheSyncTimeout = untilServed
	b := ctrl.NewControllerManagedBy(mgr).
		Named("ovncluster").
		WithOptions(options).
		For(&v1alpha1.OVNCluster{}, builder.WithPredicates(clusterChanged())).
		Watches(&corev1.Pod{}, theCluster).
		Watches(&appsv1.DaemonSet{}, theCluster, builder.WithPredicates(predicate.NewPredicateFuncs(isCleanUp))). // it has no owner
		WatchesRawSource(source.Channel(r.versions.Wake, theCluster)).
		Watches(&corev1.Node{}, theCluster, builder.WithPredicates(nodeChanged())).
		WatchesMetadata(definition(""), theCluster, builder.WithPredicates(predicate.NewPredicateFuncs(concerns)))
	for _, kind := range ownedKinds() {
		b = b.Owns(kind)
	}
	b = b.WatchesRawSource(source.Kind[client.Object](externalConfig, &corev1.ConfigMap{}, theCluster))
	for _, c := range secrets.Caches { // the Secrets of CAs have no owner
		b = b.WatchesRawSource(source.Kind[client.Object](c, &corev1.Secret{}, theCluster))
	}
	if r.kinds.controller, err = b.Build(r); err != nil {
		return fmt.Errorf("set up the controller of OVNCluster: %w", err)
	}
	if err := mgr.Add(manager.RunnableFunc(r.reportStart)); err != nil { // by the leader
		return fmt.Errorf("add the report of a missing definition: %w", err)
	}
	return nil
}

// caches reads Secrets from their own caches, and all other kinds from the manager's.
type caches struct {
	client.Reader
	secrets *certs.Secrets
}

// Get implements client.Reader.
func (c caches) Get(ctx context.Context, name client.ObjectKey, o client.Object, options ...client.GetOption) error {
	if _, is := o.(*corev1.Secret); is {
		return c.secrets.Caches[name.Name].Get(ctx, name, o, options...)
	}
	return c.Reader.Get(ctx, name, o, options...)
}

// ownedKinds are the kinds of all objects that phases apply, except Secrets and policyKinds. The operator prunes objects of these kinds.
func ownedKinds() []client.Object {
	return []client.Object{
		&corev1.ServiceAccount{}, &corev1.Service{}, &corev1.ConfigMap{},
		&appsv1.StatefulSet{}, &appsv1.Deployment{}, &appsv1.DaemonSet{},
		&policyv1.PodDisruptionBudget{},
		&rbacv1.Role{}, &rbacv1.RoleBinding{}, &rbacv1.ClusterRole{}, &rbacv1.ClusterRoleBinding{},
	}
}

// theCluster enqueues the OVNCluster for any event.
var theCluster = handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: v1alpha1.OVNClusterName}}}
})

// definition returns the metadata of a CustomResourceDefinition. The cache holds metadata only.
func definition(name string) *metav1.PartialObjectMetadata {
	d := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name}}
	d.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	return d
}

// clusterChanged drops updates of only the operator's own status messages, which must not trigger a pass. Changed records
// of databases and images do trigger one.
func clusterChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, isBefore := e.ObjectOld.(*v1alpha1.OVNCluster)
		after, isAfter := e.ObjectNew.(*v1alpha1.OVNCluster)
		return !isBefore || !isAfter || before.Generation != after.Generation ||
			slices.ContainsFunc(render.Databases, func(db render.Database) bool {
				return !equality.Semantic.DeepEqual(db.Of(&before.Status), db.Of(&after.Status))
			}) ||
			!slices.Equal(before.Status.DataDirectories, after.Status.DataDirectories) ||
			!slices.Equal(before.Status.TunnelTypes, after.Status.TunnelTypes) ||
			!slices.Equal(before.Status.Upgrade.Images, after.Status.Upgrade.Images)
	}}
}

// nodeChanged drops heartbeats.
func nodeChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, isBefore := e.ObjectOld.(*corev1.Node)
		after, isAfter := e.ObjectNew.(*corev1.Node)
		return !isBefore || !isAfter || observed.Answers(before) != observed.Answers(after) || status.KubeProxyConflict(before) != status.KubeProxyConflict(after) ||
			before.Spec.Unschedulable != after.Spec.Unschedulable ||
			!before.DeletionTimestamp.Equal(after.DeletionTimestamp) ||
			!equality.Semantic.DeepEqual(before.Labels, after.Labels) ||
			!equality.Semantic.DeepEqual(before.Spec.Taints, after.Spec.Taints) ||
			!slices.Equal(k8s.InternalIPs(before), k8s.InternalIPs(after))
	}}
}

func isCleanUp(o client.Object) bool { return o.GetName() == render.CleanUpName }

// concerns selects the definitions of the network resources, of Certificates and of the kinds of the Prometheus operator.
func concerns(o client.Object) bool {
	_, group, _ := strings.Cut(o.GetName(), ".")
	return group == v1alpha1.GroupVersion.Group || o.GetName() == certs.CertificateDefinition || isMonitoring(o.GetName())
}
