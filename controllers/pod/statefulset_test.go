// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/controllers/pod"
	"github.com/kiln-net/kiln/controllers/pod/ipobject"
)

// afterGet is a client that calls a function once, after it has read a StatefulSet and before it returns it.
type afterGet struct {
	client.Client
	name string
	call atomic.Pointer[func()]
}

func (c *afterGet) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	err := c.Client.Get(ctx, key, o, options...)
	if _, ok := o.(*appsv1.StatefulSet); ok && key.Name == c.name {
		if call := c.call.Swap(nil); call != nil {
			(*call)()
		}
	}
	return err
}

// A pod and its StatefulSet may be deleted at the same time.
func TestAnAddressIsNotKeptForAStatefulSetThatGoesMeanwhile(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24")
	late := &afterGet{name: "db"}
	seldom := ipobject.Pace{Quiet: time.Hour, AtMost: time.Hour} // the IP object keeps its state from the pod's first deletion
	process := w.Start(stepsWith(seldom, func(r *pod.Reconciler) { late.Client, r.Client = r.Client, late }))
	set, other := w.statefulSet("db", 0, 1), w.statefulSet("other", 0, 1)
	p, away := replica(set, 0, "n1"), replica(other, 0, "n1")
	w.Create(p, away)
	w.allocated(p)
	w.allocated(away)
	w.Delete(p, away)
	w.away(process, p)
	w.away(process, away)
	p = replica(set, 0, "n1")
	w.Create(p)
	w.allocated(p)

	meanwhile := func() {
		w.Delete(set)
		w.Delete(other)
		w.gone(process, away) // by then, the deletion of set has been handled as well
	}
	late.call.Store(&meanwhile)
	w.Delete(p)
	w.gone(process, p)
}
