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

// indexNode finds OvnEips by the nodes that have not confirmed their former translations.
const indexNode = "ovneip.node"

// Records of nodes that are absent only are deleted after remembered, and if there are more than maxAbsent of an OvnEip, the oldest ones: nodes that were deleted usually do
// not return.
const (
	remembered = 30 * 24 * time.Hour
	maxAbsent  = 64
)

// progress has the former translations that nodes have not confirmed, and the time after which one of them changes. Expired ones no longer wait, although Nodes exist
// that have not confirmed.
type progress struct {
	open    map[string]kubeovnv1.OvnEipRelease
	next    time.Duration
	expired []kubeovnv1.OvnEipRelease
}

// confirmed returns the progress of the former translations of an OvnEip. A node has confirmed if its agent lists the ID.
func (r *Reconciler) confirmed(ctx context.Context, eip *kubeovnv1.OvnEip) (p progress, err error) {
	reports, err := r.reports(ctx, releasing(eip))
	if err != nil {
		return p, err
	}
	for id, release := range eip.Status.Releasing {
		isOpen := func(name string) bool { return !reports[name][id] }
		isLate := time.Until(lookup.Expires(release)) <= 0
		var nodes, late []string
		absent := keep(release.Absent, isOpen)
		for _, name := range keep(release.Nodes, isOpen) {
			switch _, exists := reports[name]; {
			case !exists:
				absent = append(absent, name)
			case isLate:
				absent, late = append(absent, name), append(late, name)
			default:
				nodes = append(nodes, name)
			}
		}
		if len(late) > 0 {
			expired := release
			expired.Nodes = late
			p.expired = append(p.expired, expired)
		}
		slices.Sort(absent)
		release.Nodes, release.Absent = nodes, slices.Compact(absent)
		p.add(id, release)
	}
	p.limit()
	return p, nil
}

func keep(names []string, f func(string) bool) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !f(name) })
}

// add adds a former translation, unless it has no nodes, or its absent ones are no longer remembered.
func (p *progress) add(id string, release kubeovnv1.OvnEipRelease) {
	left := time.Until(release.Since.Add(remembered))
	if len(release.Nodes) > 0 {
		left = time.Until(lookup.Expires(release))
	}
	if len(release.Nodes)+len(release.Absent) == 0 || left <= 0 {
		return
	}
	if p.next == 0 || left < p.next {
		p.next = left
	}
	if p.open == nil {
		p.open = map[string]kubeovnv1.OvnEipRelease{}
	}
	p.open[id] = release
}

// limit removes the oldest former translations with absent nodes only, if there are too many.
func (p *progress) limit() {
	var ids []string
	for id, release := range p.open {
		if len(release.Nodes) == 0 {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b string) int { return cmp.Or(p.open[b].Since.Compare(p.open[a].Since.Time), cmp.Compare(a, b)) })
	for _, id := range ids[min(len(ids), maxAbsent):] {
		delete(p.open, id)
	}
}

// warn reports the former translations that no longer wait for nodes.
func (r *Reconciler) warn(eip *kubeovnv1.OvnEip, expired []kubeovnv1.OvnEipRelease) {
	for _, release := range expired {
		k8s.Warn(r.Recorder, eip, ReasonReleaseExpired, fmt.Sprintf("nodes %s did not report in five days that connections of %s with %s are ended, and the address is free: "+
			"connections without a pause may go on there, until the nodes are switched off or report it", strings.Join(release.Nodes, ", "), release.Address, release.Internal))
	}
}

// reports returns the IDs that existing nodes report, by node.
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

// forget deletes and changes former translations in the status. The controllers of rules add and delete others meanwhile, many in a second. So it deletes by ID, which
// belongs to one withdrawal. It changes records only if the OvnEip is not stale, because a changed record must still be there.
func (r *Reconciler) forget(ctx context.Context, eip *kubeovnv1.OvnEip, open map[string]kubeovnv1.OvnEipRelease) error {
	ended := map[string]any{}
	for id := range eip.Status.Releasing {
		if _, is := open[id]; !is {
			ended[id] = nil
		}
	}
	if len(ended) > 0 {
		patch, err := json.Marshal(map[string]any{"status": map[string]any{"releasing": ended}})
		if err != nil {
			return fmt.Errorf("encode the former translations: %w", err)
		}
		if err := r.Client.Status().Patch(ctx, eip, client.RawPatch(types.MergePatchType, patch), k8s.FieldOwner); err != nil {
			return client.IgnoreNotFound(err)
		}
	}
	base := eip.DeepCopy()
	for id, release := range open {
		if _, is := eip.Status.Releasing[id]; is {
			eip.Status.Releasing[id] = release
		}
	}
	if equality.Semantic.DeepEqual(eip.Status.Releasing, base.Status.Releasing) {
		return nil
	}
	patch := client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
	if err := client.IgnoreNotFound(r.Client.Status().Patch(ctx, eip, patch, k8s.FieldOwner)); err != nil {
		return fmt.Errorf("update the former translations: %w", err)
	}
	return nil
}

// releases describes former translations for the condition of a deleted OvnEip.
func releases(eip *kubeovnv1.OvnEip) []string {
	var texts []string
	for _, release := range lookup.Awaited(eip.Status.Releasing) {
		texts = append(texts, fmt.Sprintf("connections of %s with %s on %s", release.Address, release.Internal, strings.Join(release.Nodes, ", ")))
	}
	slices.Sort(texts)
	return slices.Compact(texts)
}

// releasing returns the nodes that have not confirmed former translations of an OvnEip.
func releasing(o client.Object) []string {
	var nodes []string
	for _, release := range o.(*kubeovnv1.OvnEip).Status.Releasing {
		nodes = slices.Concat(nodes, release.Nodes, release.Absent)
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// viewReleasing has the former translations of an OvnEip, with their nodes.
func viewReleasing(eip *kubeovnv1.OvnEip) string {
	var texts []string
	for _, id := range slices.Sorted(maps.Keys(eip.Status.Releasing)) {
		release := eip.Status.Releasing[id]
		texts = append(texts, fmt.Sprint(id, " ", release.Nodes, release.Absent))
	}
	return strings.Join(texts, ";")
}

func viewFlushed(node *corev1.Node) string {
	return node.Annotations[kubeovnv1.AnnotationFlushed.Key()]
}

// flusher writes the requests of the former translations of all OvnEips to the nodes that have not confirmed them, also to nodes that return.
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
			if err != nil || err2 != nil || release.Port < 0 || release.Port > 65535 || !slices.Contains(slices.Concat(release.Nodes, release.Absent), node) {
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
