// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovneip_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/ovneip"
)

// releases adds former translations to the status of an OvnEip.
func (w world) releases(eip *kubeovnv1.OvnEip, records map[string]kubeovnv1.OvnEipRelease) {
	w.Helper()
	w.Get(eip)
	base := eip.DeepCopy()
	if eip.Status.Releasing == nil {
		eip.Status.Releasing = map[string]kubeovnv1.OvnEipRelease{}
	}
	for id, record := range records {
		record.Rule, record.VPC, record.Address, record.Internal = "OvnFip a", "blue", "10.99.0.2", "10.50.0.5/32"
		eip.Status.Releasing[id] = record
	}
	w.Must(w.Client.Status().Patch(w.Context(), eip, client.MergeFrom(base)))
}

// awaits waits until the former translations have these nodes, in the form `id nodes` or `id nodes absent nodes`.
func (w world) awaits(eip *kubeovnv1.OvnEip, want ...string) {
	w.Helper()
	w.Eventually(func() string {
		w.Get(eip)
		var got []string
		for id, record := range eip.Status.Releasing {
			text := id + " " + strings.Join(record.Nodes, ",")
			if len(record.Absent) > 0 {
				text += " absent " + strings.Join(record.Absent, ",")
			}
			got = append(got, text)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			return fmt.Sprintf("former translations are %q, want %q", got, want)
		}
		return ""
	})
}

func (w world) node(name string) *corev1.Node {
	w.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	w.Create(node)
	return node
}

func (w world) report(node *corev1.Node, text string) {
	w.Helper()
	w.Get(node)
	base := node.DeepCopy()
	if node.Annotations == nil {
		node.Annotations = map[string]string{}
	}
	node.Annotations[kubeovnv1.AnnotationFlushed.Key()] = text
	w.Must(w.Client.Patch(w.Context(), node, client.MergeFrom(base)))
}

// requested waits until the requests to a node have these IDs.
func (w world) requested(node *corev1.Node, want ...string) {
	w.Helper()
	w.Eventually(func() string {
		w.Get(node)
		requests, err := kubeovnv1.ParseConnectionFlushes(node.Annotations[kubeovnv1.AnnotationFlush.Key()])
		w.Must(err)
		var got []string
		for _, r := range requests {
			got = append(got, r.ID)
		}
		if !slices.Equal(got, want) {
			return fmt.Sprintf("requests to %s are %q, want %q", node.Name, got, want)
		}
		return ""
	})
}

func TestANodeConfirmsItsOwnConnectionsOnly(t *testing.T) {
	w := newWorld(t)
	w.start()
	n1, n2 := w.node("n1"), w.node("n2")
	eip := newEip("front", at("10.99.0.2", ""))
	w.Create(eip)
	w.ready(eip)
	now := metav1.Now()
	w.releases(eip, map[string]kubeovnv1.OvnEipRelease{
		"both":     {Nodes: []string{"n1", "n2"}, Since: now},
		"none":     {Since: now},
		"one":      {Nodes: []string{"n1"}, Since: metav1.NewTime(now.Add(-time.Hour))},
		"with-two": {Nodes: []string{"n2"}, Since: now},
	})
	w.awaits(eip, "both n1,n2", "one n1", "with-two n2")
	w.requested(n1, "one", "both")
	w.requested(n2, "both", "with-two")

	w.report(n1, "with-two,both")
	w.awaits(eip, "both n2", "one n1", "with-two n2")
	w.requested(n1, "one")
	w.report(n1, "one,"+strings.Repeat("a,", 1<<14)) // longer than a report of an agent
	w.report(n2, "one,with-two")
	w.awaits(eip, "both n2", "one n1")
	w.Delete(eip)
	w.says(eip, kubeovnv1.ConditionReady, metav1.ConditionFalse, "connections of 10.99.0.2 with 10.50.0.5/32 on n1, connections of 10.99.0.2 with 10.50.0.5/32 on n2, until the agents of these nodes report it, "+
		"their Nodes are deleted, or "+now.Add(120*time.Hour).UTC().Format(time.RFC3339))
	w.report(n1, "one")
	w.report(n2, "both")
	w.Gone(eip)
	w.requested(n1)
	w.requested(n2)
}

func TestANodeThatReturnsEndsItsConnections(t *testing.T) {
	w := newWorld(t)
	w.start()
	n1, n2 := w.node("n1"), w.node("n2")
	eip := newEip("front", at("10.99.0.2", ""))
	w.Create(eip)
	w.ready(eip)
	now := time.Now()
	ago := func(days float64) metav1.Time {
		return metav1.NewTime(now.Add(-time.Duration(days * 24 * float64(time.Hour))))
	}
	w.releases(eip, map[string]kubeovnv1.OvnEipRelease{
		"deleted": {Nodes: []string{"n1", "n9"}, Since: ago(0)},
		"expired": {Nodes: []string{"n1", "n2"}, Since: ago(5.1)},
		"old":     {Nodes: []string{"n1"}, Since: ago(30.1)},
	})
	w.awaits(eip, "deleted n1 absent n9", "expired  absent n1,n2")
	w.Event(eip, eventsv1.Event{
		Type: corev1.EventTypeWarning, Reason: ovneip.ReasonReleaseExpired, Note: "nodes n1, n2 did not report in five days that connections of 10.99.0.2 with 10.50.0.5/32 are ended",
	})
	w.requested(n1, "expired", "deleted")
	w.requested(n2, "expired")
	w.report(n1, "expired,deleted")
	w.awaits(eip, "deleted  absent n9", "expired  absent n2")
	w.Delete(n2)
	w.requested(w.node("n9"), "deleted")
	n2 = w.node("n2")
	w.requested(n2, "expired")
	w.report(n2, "expired")
	w.awaits(eip, "deleted  absent n9")

	// Nodes that are absent only do not fill the status, and do not keep a deleted OvnEip.
	records := map[string]kubeovnv1.OvnEipRelease{}
	for i := range 64 {
		records[fmt.Sprint("r", i)] = kubeovnv1.OvnEipRelease{Absent: []string{"n9"}, Since: ago(float64(i) / 10)}
	}
	records["r63"] = kubeovnv1.OvnEipRelease{Nodes: []string{"n1"}, Since: ago(1)}
	records["young"] = kubeovnv1.OvnEipRelease{Nodes: []string{"n8"}, Since: ago(0)}
	w.releases(eip, records)
	w.Eventually(func() string {
		w.Get(eip)
		_, oldest := eip.Status.Releasing["r62"]
		_, young := eip.Status.Releasing["young"]
		if n := len(eip.Status.Releasing); n != 65 || oldest || !young {
			return fmt.Sprintf("there are %d records, the oldest one: %t, the youngest one: %t", n, oldest, young)
		}
		return ""
	})
	w.Delete(eip)
	w.says(eip, kubeovnv1.ConditionReady, metav1.ConditionFalse, "no longer used by connections of 10.99.0.2 with 10.50.0.5/32 on n1, until")
	w.report(n1, "r63")
	w.Gone(eip)
	w.requested(n1)
}

func TestRequestsToANodeAreTheOldestOnes(t *testing.T) {
	w := newWorld(t)
	w.start()
	node, eip := w.node("n1"), newEip("front", at("10.99.0.2", ""))
	w.Create(eip)
	w.ready(eip)
	records, ids := map[string]kubeovnv1.OvnEipRelease{}, []string(nil)
	for i := range kubeovnv1.MaxConnectionFlushes + 2 {
		ids = append(ids, fmt.Sprint("release-", i))
		records[ids[i]] = kubeovnv1.OvnEipRelease{Nodes: []string{"n1"}, Since: metav1.NewTime(time.Now().Add(time.Duration(i-1000) * time.Second))}
	}
	w.releases(eip, records)
	first := ids[:kubeovnv1.MaxConnectionFlushes]
	w.requested(node, first...)
	w.report(node, strings.Join(first, ","))
	w.requested(node, ids[kubeovnv1.MaxConnectionFlushes:]...)
	w.Change(node, func() { delete(node.Annotations, kubeovnv1.AnnotationFlush.Key()) }) // another program's change
	w.requested(node, ids[kubeovnv1.MaxConnectionFlushes:]...)
	w.Delete(node)
	w.awaits(eip, ids[kubeovnv1.MaxConnectionFlushes]+"  absent n1", ids[kubeovnv1.MaxConnectionFlushes+1]+"  absent n1")
}

// stale is a client whose cache has an earlier version of an OvnEip.
type stale struct {
	client.Client

	eip *kubeovnv1.OvnEip
}

func (c stale) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	if eip, ok := o.(*kubeovnv1.OvnEip); ok && key.Name == c.eip.Name {
		c.eip.DeepCopyInto(eip)
		return nil
	}
	return c.Client.Get(ctx, key, o, options...)
}

func TestARecordThatTheCacheDoesNotHaveKeepsTheAddress(t *testing.T) {
	w := newWorld(t)
	process := w.start()
	w.node("n1")
	eip := newEip("front", at("10.99.0.2", ""))
	rule := &kubeovnv1.RouterLBRule{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: kubeovnv1.RouterLBRuleSpec{OvnEip: "front"}}
	w.Create(eip, rule)
	w.ready(eip)
	w.Delete(eip)
	w.says(eip, kubeovnv1.ConditionReady, metav1.ConditionFalse, "no longer used by RouterLBRule a")
	cached := eip.DeepCopy()
	w.releases(eip, map[string]kubeovnv1.OvnEipRelease{"one": {Nodes: []string{"n1"}, Since: metav1.Now()}})
	w.Delete(rule)
	w.says(eip, kubeovnv1.ConditionReady, metav1.ConditionFalse, "no longer used by connections of 10.99.0.2")
	r := &ovneip.Reconciler{
		Client: stale{process.Manager.GetClient(), cached}, Allocator: process.Allocator, Networks: process.Networks, Recorder: process.Recorder, Gate: process.Gate,
	}
	if _, err := r.Reconcile(w.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(eip)}); !apierrors.IsConflict(err) {
		t.Errorf("the error is %v", err)
	}
	if holder := process.Allocator.Holder("external", netip.MustParseAddr("10.99.0.2")); holder != "eip/front" {
		t.Errorf("the address is %q's", holder)
	}
}
