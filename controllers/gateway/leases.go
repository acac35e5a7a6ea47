// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package gateway

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
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/kiln-net/kiln/internal/gateway"
	"github.com/kiln-net/kiln/internal/k8s"
)

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// maxTolerance bounds what a Lease asks for.
const maxTolerance = time.Minute

// Pulses follows the Leases of gateway nodes. It has a watch of its own, beside the manager's cache: where Leases cannot be read
// failover is by the nodes' conditions alone, and nothing else waits.
type Pulses struct {
	gateway.Pulses
	leases cache.SharedIndexInformer
	// changed has an element after the pulse of a node changed; which is in it.
	changed chan string
	// subscribers are told of the same.
	mu          sync.Mutex
	subscribers []func(node string)
}

// NewPulses returns what follows the Leases in a namespace; client is of coordination.k8s.io/v1.
func NewPulses(client rest.Interface, namespace string) (*Pulses, error) {
	lw := cache.NewFilteredListWatchFromClient(client, "leases", namespace, func(o *metav1.ListOptions) { o.LabelSelector = gateway.LeaseLabel })
	p := &Pulses{leases: cache.NewSharedIndexInformer(lw, &coordinationv1.Lease{}, 0, nil), changed: make(chan string, 64)}
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

// Subscribe has f called for each node whose pulse changes, while the controller of gateways runs. f must not block.
func (p *Pulses) Subscribe(f func(node string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.subscribers = append(p.subscribers, f)
}

func (p *Pulses) tell(node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.subscribers {
		f(node)
	}
}

// Expect takes note that the agent of a node is to renew a Lease.
func (p *Pulses) Expect(node string) {
	if p != nil {
		p.Pulses.Expect(node)
	}
}

// Of is the pulse of a node.
func (p *Pulses) Of(node string) gateway.Pulse {
	if p == nil {
		return gateway.NoLease
	}
	return p.Pulses.Of(node)
}

func (p *Pulses) renewed(o any) {
	lease, ok := o.(*coordinationv1.Lease)
	if !ok {
		return
	}
	if lease.Spec.RenewTime == nil { // given up
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

// source enqueues the subnets whose gateway a node may be when the node's pulse changes.
func (p *Pulses) source(behind func(ctx context.Context, node string, labels map[string]string) []string) source.Source {
	return source.Func(func(ctx context.Context, q queue) error {
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

// watch calls changed for each node whose pulse changes. It wakes when the next Lease would run out.
func (p *Pulses) watch(ctx context.Context, changed func(node string)) {
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
