// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package flush

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/kiln-net/kiln/api/v1"

	"github.com/kiln-net/kiln/internal/testing/must"
)

// connections simulate a node. flows are the IDs of the translations that have flows. The deletion of the connections of fails fails with err.
type connections struct {
	flows   []string
	flushed []string
	most    int // of the requests of one call
	fails   string
	err     error
	// hangs makes the bridge stop answering after the first request.
	hangs bool
}

func (c *connections) Translated(ctx context.Context, all []v1.ConnectionFlush) ([]v1.ConnectionFlush, error) {
	if c.hangs {
		<-ctx.Done()
		return all[1:], ctx.Err()
	}
	return slices.DeleteFunc(slices.Clone(all), func(one v1.ConnectionFlush) bool { return !slices.Contains(c.flows, one.ID) }), nil
}

func (c *connections) Flush(ctx context.Context, all []v1.ConnectionFlush) (done []v1.ConnectionFlush, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c.most = max(c.most, len(all))
	for _, one := range all {
		if one.ID == c.fails {
			return done, c.err
		}
		c.flushed, done = append(c.flushed, one.ID), append(done, one)
	}
	return done, nil
}

// node is a Node with a Reconciler.
type node struct {
	*testing.T
	*Reconciler

	connections *connections
}

func newNode(t *testing.T) node {
	t.Helper()
	api := fake.NewClientBuilder().WithObjects(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}).WithInterceptorFuncs(interceptor.Funcs{
		// The API server changes annotations with the status, too.
		SubResourcePatch: func(ctx context.Context, c client.Client, _ string, o client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) error {
			return c.Patch(ctx, o, patch)
		},
	}).Build()
	n := node{t, nil, &connections{}}
	n.Reconciler = &Reconciler{Client: api, Node: "n1", Connections: n.connections}
	return n
}

func (n node) requests(ids ...string) {
	n.Helper()
	var all []v1.ConnectionFlush
	for _, id := range ids {
		all = append(all, v1.ConnectionFlush{ID: id, Address: netip.MustParseAddr("192.0.2.9"), Internal: netip.MustParsePrefix("10.50.0.5/32")})
	}
	n.annotate(must.Value(v1.FormatConnectionFlushes(all)))
}

func (n node) annotate(text string) {
	n.Helper()
	o := &corev1.Node{}
	must.Succeed(n.T, n.Client.Get(n.Context(), client.ObjectKey{Name: "n1"}, o))
	if o.Annotations == nil {
		o.Annotations = map[string]string{}
	}
	o.Annotations[v1.AnnotationFlush.Key()] = text
	must.Succeed(n.T, n.Client.Update(n.Context(), o))
}

// passes runs a pass, and expects the annotation afterwards. It returns the time until the next pass.
func (n node) passes(reported string) time.Duration {
	n.Helper()
	result, err := n.Reconcile(n.Context(), ctrl.Request{})
	must.Succeed(n.T, err)
	n.reports(reported)
	return result.RequeueAfter
}

func (n node) reports(want string) {
	n.Helper()
	o := &corev1.Node{}
	must.Succeed(n.T, n.Client.Get(n.Context(), client.ObjectKey{Name: "n1"}, o))
	if got := o.Annotations[v1.AnnotationFlushed.Key()]; got != want {
		n.Errorf("the node reports %q, want %q", got, want)
	}
}

func TestConnectionsEndOnceTheFlowsAreDeleted(t *testing.T) {
	n := newNode(t)
	if n.passes("") != 0 {
		t.Error("a pass follows without a request")
	}
	n.connections.flows = []string{"b"}
	n.requests("a", "b")
	first := n.passes("a")
	if second := n.passes("a"); first <= 0 || second <= first {
		t.Errorf("passes follow after %s and %s", first, second)
	}
	n.connections.flows = nil
	if n.passes("a,b") != 0 {
		t.Error("a pass follows without a flow")
	}
	n.passes("a,b")
	if !slices.Equal(n.connections.flushed, []string{"a", "b"}) {
		t.Errorf("connections ended of %v", n.connections.flushed)
	}
	n.requests("b", "c")
	n.passes("b,c")
	n.requests()
	n.passes("")
	for range 20 {
		n.pause = min(2*n.pause, lastPause)
	}
	n.connections.flows = []string{"d"}
	n.requests("d")
	if again := n.passes(""); again != firstPause {
		t.Errorf("the first look at flows of a new request is followed by one after %s", again)
	}
}

func TestAFailureIsNotReportedAsDone(t *testing.T) {
	n := newNode(t)
	n.requests("a", "b", "c")
	n.connections.fails, n.connections.err = "b", errors.New("no answer")
	if _, err := n.Reconcile(t.Context(), ctrl.Request{}); err == nil {
		t.Error("no error")
	}
	n.reports("a")
	n.connections.fails = ""
	n.passes("a,b,c")
	if !slices.Equal(n.connections.flushed, []string{"a", "b", "c"}) {
		t.Errorf("connections ended of %v", n.connections.flushed)
	}
	n.annotate("not JSON")
	n.passes("")
}

func TestABridgeThatStopsAnsweringHoldsUpTheOthersOnly(t *testing.T) {
	n := newNode(t)
	n.requests("a", "b")
	n.connections.hangs, n.timeout = true, 10*time.Millisecond
	if _, err := n.Reconcile(t.Context(), ctrl.Request{}); err == nil {
		t.Error("no error")
	}
	n.reports("a")
	n.connections.hangs, n.timeout = false, 0
	n.passes("a,b")
}

func TestRequestsAreReportedInChunks(t *testing.T) {
	n := newNode(t)
	var ids []string
	for i := range 2*chunkSize + 1 {
		ids = append(ids, fmt.Sprint("r", i))
	}
	n.requests(ids...)
	n.connections.fails, n.connections.err = ids[2*chunkSize], errors.New("no answer")
	if _, err := n.Reconcile(t.Context(), ctrl.Request{}); err == nil {
		t.Error("no error")
	}
	n.reports(strings.Join(ids[:2*chunkSize], ","))
	if n.connections.most != chunkSize {
		t.Errorf("a call had %d requests", n.connections.most)
	}
	n.connections.fails = ""
	n.passes(strings.Join(ids, ","))
}
