// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package flush ends the tracked connections of external addresses that were moved or released. kube-ovn-controller requests it by an annotation of the node.
package flush

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/kiln-net/kiln/api/v1"

	"github.com/kiln-net/kiln/internal/k8s"
)

// Pauses between two looks at the flows of the bridge, while flows of a former translation are there. Open vSwitch has an event for this, the flow monitor, but each
// of its filters costs ovs-vswitchd work for every change of flows; ovn-controller usually deletes the flows within the first pauses.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 5 * time.Second
)

// Requests are handled in chunks, each of which is reported. Each of the two steps of a chunk has a time-out of its own: the next pass continues with the others.
const (
	chunkSize   = 64
	stepTimeout = 30 * time.Second
)

// Connections are the tracked connections of the node (ovs.Connections).
type Connections interface {
	// Translated returns the former translations of which the integration bridge still has a flow; with an error also the unchecked ones.
	Translated(context.Context, []v1.ConnectionFlush) ([]v1.ConnectionFlush, error)
	// Flush deletes the tracked connections of former translations without flows. It returns those for which it has, also with an error.
	Flush(context.Context, []v1.ConnectionFlush) ([]v1.ConnectionFlush, error)
}

// Reconciler carries out the requests to this node, and reports them on the Node. The manager's cache must contain this node only.
type Reconciler struct {
	Client      client.Client
	Node        string
	Connections Connections

	timeout time.Duration // of a step; stepTimeout if it is 0
	pause   time.Duration
	last    string // the annotation of the last pass
}

// SetupWithManager registers the reconciler, which runs a pass for changes of both annotations.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	exportMetrics()
	err := ctrl.NewControllerManagedBy(mgr).
		Named("flush").
		For(&corev1.Node{}, builder.WithPredicates(k8s.Changed(func(node *corev1.Node) [2]string {
			return [2]string{node.Annotations[v1.AnnotationFlush.Key()], node.Annotations[v1.AnnotationFlushed.Key()]}
		}))).
		WithOptions(k8s.Workers(1)).
		Complete(r)
	if err != nil {
		return fmt.Errorf("set up the controller of tracked connections: %w", err)
	}
	return nil
}

// Reconcile runs a pass.
func (r *Reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	node := &corev1.Node{}
	if err := r.Client.Get(ctx, types.NamespacedName{Name: r.Node}, node); err != nil {
		return ctrl.Result{}, fmt.Errorf("read node %s: %w", r.Node, err)
	}
	text := node.Annotations[v1.AnnotationFlush.Key()]
	requests, err := v1.ParseConnectionFlushes(text)
	if err != nil {
		log.FromContext(ctx).Error(err, "cannot read requests to end connections", "annotation", v1.AnnotationFlush.Key())
	}
	if text != r.last {
		r.pause, r.last = firstPause, text
	}
	left, err := r.pass(ctx, node, requests)
	waiting.Set(float64(left))
	if err != nil || left == 0 {
		return ctrl.Result{}, err
	}
	again := r.pause
	r.pause = min(2*r.pause, lastPause)
	return ctrl.Result{RequeueAfter: again}, nil
}

// pass carries out requests and reports them, and returns the number of remaining requests.
func (r *Reconciler) pass(ctx context.Context, node *corev1.Node, requests []v1.ConnectionFlush) (left int, err error) {
	done := v1.FlushedConnections(node.Annotations[v1.AnnotationFlushed.Key()])
	isDone := func(request v1.ConnectionFlush) bool { return slices.Contains(done, request.ID) }
	open := slices.DeleteFunc(slices.Clone(requests), isDone)
	left = len(open)
	if left == 0 {
		return 0, r.report(ctx, node, requests, isDone)
	}
	for chunk := range slices.Chunk(open, chunkSize) {
		ended, err := r.flush(ctx, chunk)
		left -= len(ended)
		for _, request := range ended {
			done = append(done, request.ID)
		}
		if err = errors.Join(err, r.report(ctx, node, requests, isDone)); err != nil {
			return left, err
		}
	}
	return left, nil
}

// flush carries out the requests whose translations no longer have a flow, and returns them. After an error, it returns the completed ones.
func (r *Reconciler) flush(ctx context.Context, requests []v1.ConnectionFlush) ([]v1.ConnectionFlush, error) {
	left, err := r.translated(ctx, requests)
	ready := slices.DeleteFunc(slices.Clone(requests), func(request v1.ConnectionFlush) bool { return slices.Contains(left, request) })
	if len(ready) == 0 {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(r.timeout, stepTimeout))
	defer cancel()
	ended, flushErr := r.Connections.Flush(ctx, ready)
	flushed.Add(float64(len(ended)))
	for _, request := range ended {
		log.FromContext(ctx).Info("ended the connections of a former translation", "address", request.Address, "internal", request.Internal, "id", request.ID)
	}
	return ended, errors.Join(err, flushErr)
}

func (r *Reconciler) translated(ctx context.Context, requests []v1.ConnectionFlush) ([]v1.ConnectionFlush, error) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(r.timeout, stepTimeout))
	defer cancel()
	return r.Connections.Translated(ctx, requests)
}

// report writes the annotation flushed_connections with the requests that are done.
func (r *Reconciler) report(ctx context.Context, node *corev1.Node, requests []v1.ConnectionFlush, isDone func(v1.ConnectionFlush) bool) error {
	var done []string
	for _, request := range requests {
		if isDone(request) {
			done = append(done, request.ID)
		}
	}
	key, ids := v1.AnnotationFlushed.Key(), strings.Join(done, ",")
	if node.Annotations[key] == ids {
		return nil
	}
	var value any
	if ids != "" {
		value = ids
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: value}}})
	if err != nil {
		return fmt.Errorf("encode the annotation %s: %w", key, err)
	}
	if err := r.Client.Status().Patch(ctx, node, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("report ended connections on node %s: %w", node.Name, err)
	}
	return nil
}
