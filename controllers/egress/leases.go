// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/kiln-net/kiln/internal/gateway"
	"github.com/kiln-net/kiln/internal/k8s"
)

// maxTolerance is the maximum duration that a Lease may request.
const maxTolerance = time.Minute

// LeaseStates watches the Leases of gateway nodes. It uses its own watch instead of the manager's cache: if Leases cannot be read, failover
// depends on the nodes' conditions alone, and the start of the manager is not blocked.
type LeaseStates struct {
	gateway.LeaseStates
	leases cache.SharedIndexInformer
	// changed receives the name of each node whose pulse has changed.
	changed chan string
	// subscribers are called for the same changes.
	mu          sync.Mutex
	subscribers []func(node string)
}

// NewLeaseStates returns a watcher of the Leases in a namespace. client is for the API group and version coordination.k8s.io/v1.
func NewLeaseStates(client rest.Interface, namespace string) (*LeaseStates, error) {
	lw := cache.NewFilteredListWatchFromClient(client, "leases", namespace, func(o *metav1.ListOptions) { o.LabelSelector = gateway.LeaseLabel })
	p := &LeaseStates{leases: cache.NewSharedIndexInformer(lw, &coordinationv1.Lease{}, 0, nil), changed: make(chan string, 64)}
	_, err := p.leases.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    p.renewed,
		UpdateFunc: func(_, o any) { p.renewed(o) },
		DeleteFunc: func(o any) {
			if tombstone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = tombstone.Obj
			}
			if lease, ok := o.(*coordinationv1.Lease); ok && p.Gone(nodeOf(lease)) {
				p.changed <- nodeOf(lease)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("follow the Leases of gateway nodes: %w", err)
	}
	return p, nil
}

// Subscribe registers f, which is called for each node whose pulse changes while the gateway controller runs. f must not block.
func (p *LeaseStates) Subscribe(f func(node string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.subscribers = append(p.subscribers, f)
}

func (p *LeaseStates) tell(node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.subscribers {
		f(node)
	}
}

// Expect records that the agent of a node has to renew its Lease from now on.
func (p *LeaseStates) Expect(node string) {
	if p != nil {
		p.LeaseStates.Expect(node)
	}
}

// Of returns the pulse of a node.
func (p *LeaseStates) Of(node string) gateway.LeaseState {
	if p == nil {
		return gateway.NoLease
	}
	return p.LeaseStates.Of(node)
}

func (p *LeaseStates) renewed(o any) {
	lease, ok := o.(*coordinationv1.Lease)
	if !ok {
		return
	}
	if lease.Spec.RenewTime == nil { // the agent released it
		if p.Gone(nodeOf(lease)) {
			p.changed <- nodeOf(lease)
		}
		return
	}
	tolerance := gateway.Tolerance
	if s := lease.Spec.LeaseDurationSeconds; s != nil {
		tolerance = min(max(time.Duration(*s)*time.Second, gateway.Tolerance), maxTolerance)
	}
	if node := nodeOf(lease); p.Renewed(node, lease.Spec.RenewTime.Time, tolerance) {
		p.changed <- node
	}
}

func nodeOf(lease *coordinationv1.Lease) string {
	return strings.TrimPrefix(lease.Name, gateway.LeasePrefix)
}

// source returns a source that enqueues the subnets for which a node is a gateway candidate when the pulse of the node changes.
func (p *LeaseStates) source(behind func(ctx context.Context, node string, labels map[string]string) []string) source.Source {
	return source.Func(func(ctx context.Context, q k8s.Queue) error {
		if p == nil {
			return nil
		}
		go p.leases.RunWithContext(ctx)
		go p.watch(ctx, func(node string) {
			for _, subnet := range behind(ctx, node, nil) {
				q.Add(k8s.Request(subnet))
			}
			p.tell(node)
		})
		return nil
	})
}

// watch calls changed for each node whose pulse changes. A timer fires when the next Lease expires.
func (p *LeaseStates) watch(ctx context.Context, changed func(node string)) {
	timer := time.NewTimer(gateway.Tolerance)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case node := <-p.changed:
			changed(node)
		case <-timer.C:
			stopped, next := p.Expire()
			for _, node := range stopped {
				changed(node)
			}
			timer.Reset(next)
		}
	}
}
