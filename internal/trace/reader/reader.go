// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package reader reads the objects that a question of package trace concerns, with the permissions of its user. It reads single objects and lists of few
// objects, in parallel: no list of all pods or of all IPs, whose size is that of the cluster.
package reader

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/controllers/policy"
	"github.com/kiln-net/kiln/internal/envcheck"
	"github.com/kiln-net/kiln/internal/trace"
)

const (
	// maxPods bounds the pods of endpoints that are read: each needs some requests, and the client has a rate.
	maxPods = 256
	// maxUnready is the number of pods that are read of a Service without endpoints.
	maxUnready = 16
)

// Scheme has the kinds that Read reads.
func Scheme() (*runtime.Scheme, error) {
	scheme, err := envcheck.Scheme()
	if err != nil {
		return nil, err
	}
	if err := policy.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register kinds of policies: %w", err)
	}
	return scheme, nil
}

// reading is the state of Read.
type reading struct {
	client.Reader

	query trace.Query

	mu   sync.Mutex
	s    *trace.Snapshot
	seen map[string]bool

	listNodes sync.Once
	// nodes are all nodes by their addresses, after listNodes.
	nodes map[netip.Addr]*corev1.Node
}

// Read reads the objects for a query. What the user may not read is in Unread of the snapshot.
func Read(ctx context.Context, c client.Reader, q trace.Query) (*trace.Snapshot, error) {
	r := &reading{Reader: c, query: q, s: &trace.Snapshot{}, seen: map[string]bool{}}
	for _, round := range []func(ctx context.Context, g *requests){r.ends, r.around, r.endpoints, r.around} {
		if err := run(ctx, round); err != nil {
			return nil, fmt.Errorf("read the cluster: %w", err)
		}
	}
	byName := func(a, b *corev1.Pod) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	}
	slices.SortFunc(r.s.Pods, byName)
	r.s.Pods = slices.CompactFunc(r.s.Pods, func(a, b *corev1.Pod) bool { return byName(a, b) == 0 }) // by its name and by its address
	slices.SortFunc(r.s.Unread, func(a, b trace.Unread) int { return strings.Compare(a.String(), b.String()) })
	return r.s, nil
}

// requests are requests of one round. Run starts them when all are known, because they change the snapshot from which they are made.
type requests struct{ list []func() error }

// Go adds a request.
func (q *requests) Go(f func() error) { q.list = append(q.list, f) }

// parallel is the number of requests at the same time.
const parallel = 16

func run(ctx context.Context, round func(ctx context.Context, g *requests)) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	q := &requests{}
	round(ctx, q)
	for _, f := range q.list {
		g.Go(f)
	}
	return g.Wait()
}

// once reports whether an object is read for the first time.
func (r *reading) once(key string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	again := r.seen[key]
	r.seen[key] = true
	return !again
}

// answered handles the error of a request: a missing permission becomes a part of the snapshot, and an object or a kind that does not exist is no error. It
// reports whether there is a result.
func (r *reading) answered(err error, u trace.Unread) (bool, error) {
	switch {
	case err == nil:
		return true, nil
	case apierrors.IsForbidden(err):
		r.mu.Lock()
		defer r.mu.Unlock()
		if !slices.Contains(r.s.Unread, u) {
			r.s.Unread = append(r.s.Unread, u)
		}
		return false, nil
	case apierrors.IsNotFound(err) || meta.IsNoMatchError(err):
		return false, nil
	}
	return false, err
}

// get reads one object into the snapshot.
func get[T any, P interface {
	*T
	client.Object
}](ctx context.Context, r *reading, resource, namespace, name string, into *[]P) func() error {
	return func() error {
		if name == "" || !r.once(resource+"/"+namespace+"/"+name) {
			return nil
		}
		o := P(new(T))
		ok, err := r.answered(r.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, o),
			trace.Unread{Resource: resource, Namespace: namespace, Verb: "get"})
		if ok {
			r.mu.Lock()
			defer r.mu.Unlock()
			*into = append(*into, o)
		}
		return err
	}
}

// list reads a list, and adds its items to the snapshot.
func list(ctx context.Context, r *reading, resource, namespace string, l client.ObjectList, add func(), options ...client.ListOption) func() error {
	return func() error {
		if namespace != "" {
			options = append(options, client.InNamespace(namespace))
		}
		ok, err := r.answered(r.List(ctx, l, options...), trace.Unread{Resource: resource, Namespace: namespace, Verb: "list"})
		if ok {
			r.mu.Lock()
			defer r.mu.Unlock()
			add()
		}
		return err
	}
}

func pointers[T any](items []T) []*T {
	out := make([]*T, len(items))
	for i := range items {
		out[i] = &items[i]
	}
	return out
}

// addPods adds pods that the snapshot does not have yet.
func (r *reading) addPods(pods []*corev1.Pod) {
	for _, pod := range pods {
		if !slices.ContainsFunc(r.s.Pods, func(p *corev1.Pod) bool { return p.Namespace == pod.Namespace && p.Name == pod.Name }) {
			r.s.Pods = append(r.s.Pods, pod)
		}
	}
}
