// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound/desired"
)

// Northbound is the part of the northbound engine that sources use.
type Northbound interface {
	// Owners lists the owners of this kind that have rows.
	Owners(kind string) []desired.Owner
	// Subscribe calls f when an owner of this kind must be applied again.
	Subscribe(kind string, f func(desired.Owner))
}

// Drift enqueues the owners of one kind whose rows another program changed, or whose missing parent or reference was created.
func Drift(nb Northbound, kind string) source.Source {
	return source.Func(func(_ context.Context, q k8s.Queue) error {
		nb.Subscribe(kind, func(o desired.Owner) { q.Add(k8s.RequestOf(nameOf(o))) })
		return nil
	})
}

// Names lists objects that may be orphans.
type Names func(ctx context.Context) ([]types.NamespacedName, error)

// OwnersOf lists the owners of one kind that have rows in the northbound database.
func OwnersOf(nb Northbound, kind string) Names {
	return func(context.Context) ([]types.NamespacedName, error) {
		owners := nb.Owners(kind)
		names := make([]types.NamespacedName, 0, len(owners))
		for _, o := range owners {
			names = append(names, nameOf(o))
		}
		return names, nil
	}
}

// Orphans enqueues, once, the names from the lists, after the informer of the kind has synced and the gate is open. An object
// that is missing then was deleted, and its reconciler cleans up after it as usual. Orphans have a low priority: new objects
// precede them.
func Orphans(informers cache.Informers, gate *StartGate, kind client.Object, lists ...Names) source.Source {
	return orphans(informers, gate, kind, lists, func(context.Context, types.NamespacedName) bool { return false })
}

// LateAfter is the delay (k8s.Periodic) before an object that the cache does not show yet is reconciled without an event. It is far longer
// than the usual lag of a cache.
const LateAfter = time.Minute

// OrphansOf is Orphans for a kind whose rows and addresses must not be removed by mistake. The cache of a new leader can be
// stale compared with the objects for which the previous leader made rows. So each object that is missing from the cache is read
// from the API server.
func OrphansOf(mgr Readers, gate *StartGate, kind client.Object, lists ...Names) source.Source {
	return orphans(mgr.GetCache(), gate, kind, lists, func(ctx context.Context, name types.NamespacedName) bool {
		o := kind.DeepCopyObject().(client.Object)
		if err := mgr.GetCache().Get(ctx, name, o, client.UnsafeDisableDeepCopy); !apierrors.IsNotFound(err) {
			return false
		}
		return !apierrors.IsNotFound(mgr.GetAPIReader().Get(ctx, name, o)) // the object exists, or the API server did not answer
	})
}

// Readers provide the cache and a reader of the API server.
type Readers interface {
	GetCache() cache.Cache
	GetAPIReader() client.Reader
}

// isLate reports whether an object exists that the cache does not show yet.
type isLate func(context.Context, types.NamespacedName) bool

func orphans(informers cache.Informers, gate *StartGate, kind client.Object, lists []Names, late isLate) source.Source {
	return source.Func(func(ctx context.Context, q k8s.Queue) error {
		go func() {
			if err := enqueueOrphans(ctx, q, informers, gate, kind, lists, late); err != nil && ctx.Err() == nil {
				log.FromContext(ctx).Error(err, "cannot look for orphans", "kind", fmt.Sprintf("%T", kind))
			}
		}()
		return nil
	})
}

func enqueueOrphans(
	ctx context.Context, q k8s.Queue, informers cache.Informers, gate *StartGate, kind client.Object, lists []Names, late isLate,
) error {
	if _, err := informers.GetInformer(ctx, kind); err != nil {
		return fmt.Errorf("wait for the informer: %w", err)
	}
	if err := gate.Wait(ctx); err != nil {
		return fmt.Errorf("wait for the start: %w", err)
	}
	for _, list := range lists {
		names, err := list(ctx)
		if err != nil {
			return fmt.Errorf("list possible orphans: %w", err)
		}
		for _, n := range names {
			if late(ctx, n) {
				q.AddAfter(k8s.RequestOf(n), k8s.Periodic(LateAfter))
				continue
			}
			AddWith(q, handler.LowPriority, k8s.RequestOf(n))
		}
	}
	return nil
}

// AddWith enqueues requests with a priority, if the queue supports priorities.
func AddWith(q k8s.Queue, priority int, requests ...reconcile.Request) {
	if pq, ok := q.(priorityqueue.PriorityQueue[reconcile.Request]); ok {
		pq.AddWithOpts(priorityqueue.AddOpts{Priority: &priority}, requests...)
		return
	}
	for _, r := range requests {
		q.Add(r)
	}
}

func nameOf(o desired.Owner) types.NamespacedName {
	return types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
}

// Notifier notifies of each change in the use of a subnet's addresses. The allocator implements it.
type Notifier interface {
	Notify(func(subnet string))
}

// OnServiceClaims enqueues the objects that concerned returns for each claim of a Service to an OvnEip that changes.
func OnServiceClaims(n *lookup.Networks, concerned func(context.Context, lookup.ServiceClaim) []reconcile.Request) source.Source {
	return source.Func(func(ctx context.Context, q k8s.Queue) error {
		n.ServiceClaims.Observe(func(claim lookup.ServiceClaim) {
			for _, req := range concerned(ctx, claim) {
				q.Add(req)
			}
		})
		return nil
	})
}

// OnUse enqueues the cluster-scoped objects that concerned returns for a subnet after the use of its addresses has changed. It
// waits for moment, so that several changes enqueue an object once.
func OnUse(n Notifier, moment time.Duration, concerned func(subnet string) []string) source.Source {
	return source.Func(func(_ context.Context, q k8s.Queue) error {
		n.Notify(func(subnet string) {
			for _, name := range concerned(subnet) {
				q.AddAfter(k8s.Request(name), moment)
			}
		})
		return nil
	})
}
