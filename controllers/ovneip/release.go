// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovneip

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
)

// ReasonReleaseExpired is the reason of the event about a former translation that no longer waits for nodes that have not confirmed.
const ReasonReleaseExpired = "ReleaseExpired"

// indexNode finds OvnEips by the nodes that their former translations wait for.
const indexNode = "ovneip.node"

// progress has the former translations that still wait for nodes, and the time after which one of them no longer does. Expired ones no longer wait, although a node has not
// confirmed.
type progress struct {
	waiting map[string]kubeovnv1.OvnEipRelease
	next    time.Duration
	expired []kubeovnv1.OvnEipRelease
}

// confirmed returns the progress of the former translations of an OvnEip. A node has confirmed if its agent lists the ID, or if the Node is deleted.
func (r *Reconciler) confirmed(ctx context.Context, eip *kubeovnv1.OvnEip) (p progress, err error) {
	reports, err := r.reports(ctx, releasing(eip))
	if err != nil {
		return p, err
	}
	for id, release := range eip.Status.Releasing {
		left := time.Until(lookup.Expires(release))
		release.Nodes = slices.DeleteFunc(slices.Clone(release.Nodes), func(name string) bool {
			reported, exists := reports[name]
			return !exists || reported[id]
		})
		switch {
		case len(release.Nodes) == 0:
			continue
		case left <= 0:
			p.expired = append(p.expired, release)
			continue
		}
		if p.next == 0 || left < p.next {
			p.next = left
		}
		if p.waiting == nil {
			p.waiting = map[string]kubeovnv1.OvnEipRelease{}
		}
		p.waiting[id] = release
	}
	return p, nil
}

// warn reports the former translations that no longer wait for nodes.
func (r *Reconciler) warn(eip *kubeovnv1.OvnEip, expired []kubeovnv1.OvnEipRelease) {
	for _, release := range expired {
		k8s.Warn(r.Recorder, eip, ReasonReleaseExpired, fmt.Sprintf("nodes %s did not report in five days that connections of %s with %s are ended, and the address is free: "+
			"connections without a pause may go on there, until the nodes are switched off", strings.Join(release.Nodes, ", "), release.Address, release.Internal))
	}
}

// reports returns the IDs that nodes report, for those of the nodes that exist.
func (r *Reconciler) reports(ctx context.Context, nodes []string) (map[string]map[string]bool, error) {
	reports := map[string]map[string]bool{}
	for _, name := range nodes {
		node, err := k8s.Find[corev1.Node](ctx, r.Client, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
		if err != nil {
			return nil, fmt.Errorf("get node %s: %w", name, err)
		}
		if node == nil {
			continue
		}
		reports[name] = map[string]bool{}
		for _, id := range kubeovnv1.FlushedConnections(node.Annotations[kubeovnv1.AnnotationFlushed.Key()]) {
			reports[name][id] = true
		}
	}
	return reports, nil
}

// forget replaces the former translations in the status, unless the OvnEip is stale: the controllers of rules add others.
func (r *Reconciler) forget(ctx context.Context, eip *kubeovnv1.OvnEip, waiting map[string]kubeovnv1.OvnEipRelease) error {
	if equality.Semantic.DeepEqual(eip.Status.Releasing, waiting) {
		return nil
	}
	base := eip.DeepCopy()
	eip.Status.Releasing = waiting
	patch := client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
	if err := client.IgnoreNotFound(r.Client.Status().Patch(ctx, eip, patch, k8s.FieldOwner)); err != nil {
		return fmt.Errorf("update the former translations: %w", err)
	}
	return nil
}

// releases describes former translations for the condition of a deleted OvnEip.
func releases(eip *kubeovnv1.OvnEip) []string {
	var texts []string
	for _, release := range eip.Status.Releasing {
		texts = append(texts, fmt.Sprintf("connections of %s with %s on %s", release.Address, release.Internal, strings.Join(release.Nodes, ", ")))
	}
	slices.Sort(texts)
	return slices.Compact(texts)
}

// releasing returns the nodes that the former translations of an OvnEip wait for.
func releasing(o client.Object) []string {
	var nodes []string
	for _, release := range o.(*kubeovnv1.OvnEip).Status.Releasing {
		nodes = append(nodes, release.Nodes...)
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// viewReleasing has the former translations of an OvnEip, with their nodes.
func viewReleasing(eip *kubeovnv1.OvnEip) string {
	var texts []string
	for _, id := range slices.Sorted(maps.Keys(eip.Status.Releasing)) {
		texts = append(texts, id+" "+strings.Join(eip.Status.Releasing[id].Nodes, ","))
	}
	return strings.Join(texts, ";")
}

func viewFlushed(node *corev1.Node) string {
	return node.Annotations[kubeovnv1.AnnotationFlushed.Key()]
}

// flusher writes the requests of the former translations of all OvnEips to the nodes that they wait for.
type flusher struct{ *Reconciler }

func (r flusher) setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("ovneip-flush").
		For(&corev1.Node{}, builder.WithPredicates(k8s.Changed(func(node *corev1.Node) string { return node.Annotations[kubeovnv1.AnnotationFlush.Key()] }))).
		Watches(&kubeovnv1.OvnEip{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
			return k8s.Requests(releasing(o)...)
		}), builder.WithPredicates(k8s.Changed(viewReleasing))).
		WithOptions(r.Gate.Workers(1)).
		Complete(r.Gate.Reconciler(r))
}

// Reconcile brings the requests to one node up to date. A node gets the oldest ones, at most MaxConnectionFlushes at a time.
func (r flusher) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	node, err := k8s.Find[corev1.Node](ctx, r.Client, req.NamespacedName, client.UnsafeDisableDeepCopy)
	if err != nil || node == nil {
		return ctrl.Result{}, err
	}
	requests, err := r.requests(ctx, node.Name)
	if err != nil {
		return ctrl.Result{}, err
	}
	text, err := kubeovnv1.FormatConnectionFlushes(requests)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("encode the requests to node %s: %w", node.Name, err)
	}
	key := kubeovnv1.AnnotationFlush.Key()
	if node.Annotations[key] == text {
		return ctrl.Result{}, nil
	}
	var value any
	if text != "" {
		value = text
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: value}}})
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("encode the annotation of node %s: %w", node.Name, err)
	}
	if err := client.IgnoreNotFound(r.Client.Patch(ctx, node.DeepCopy(), client.RawPatch(types.MergePatchType, patch), k8s.FieldOwner)); err != nil {
		return ctrl.Result{}, fmt.Errorf("write the requests to node %s: %w", node.Name, err)
	}
	return ctrl.Result{}, nil
}

func (r flusher) requests(ctx context.Context, node string) ([]kubeovnv1.ConnectionFlush, error) {
	var eips kubeovnv1.OvnEipList
	if err := r.Client.List(ctx, &eips, client.MatchingFields{indexNode: node}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list OvnEips by node: %w", err)
	}
	type entry struct {
		request kubeovnv1.ConnectionFlush
		since   time.Time
	}
	var entries []entry
	for i := range eips.Items {
		for id, release := range eips.Items[i].Status.Releasing {
			address, err := netip.ParseAddr(release.Address)
			internal, err2 := netip.ParsePrefix(release.Internal)
			if err != nil || err2 != nil || release.Port < 0 || release.Port > 65535 || !slices.Contains(release.Nodes, node) {
				continue // no component writes such a status
			}
			entries = append(entries, entry{since: release.Since.Time, request: kubeovnv1.ConnectionFlush{
				ID: id, Address: address, Internal: internal, Source: release.Source, Protocol: release.Protocol, Port: uint16(release.Port),
			}})
		}
	}
	slices.SortFunc(entries, func(a, b entry) int { return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.request.ID, b.request.ID)) })
	var requests []kubeovnv1.ConnectionFlush
	for _, e := range entries[:min(len(entries), kubeovnv1.MaxConnectionFlushes)] {
		requests = append(requests, e.request)
	}
	return requests, nil
}
