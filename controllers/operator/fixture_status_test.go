// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"maps"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
)

// condition returns a getter for Eventually: status, reason and message of one condition.
func (s *scenario) condition(t *testing.T, kind string) func() string {
	return func() string {
		c := meta.FindStatusCondition(s.cluster(t).Status.Conditions, kind)
		if c == nil {
			return "none"
		}
		return string(c.Status) + " " + c.Reason + ": " + c.Message
	}
}

func (s *scenario) events(t *testing.T) []string {
	var list eventsv1.EventList
	if err := s.admin.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range list.Items {
		if e.Regarding.Kind == "OVNCluster" {
			all = append(all, e.Type+" "+e.Reason)
		}
	}
	return all
}

func (s *scenario) nodeEvents(t *testing.T, node string) (all []string) {
	var list eventsv1.EventList
	if err := s.admin.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	for _, e := range list.Items {
		if e.Regarding.Kind == "Node" && e.Regarding.Name == node {
			all = append(all, e.Type+" "+e.Reason)
		}
	}
	return all
}

func (s *scenario) row(t *testing.T, name string) v1alpha1.ComponentStatus {
	for _, row := range s.cluster(t).Status.Components {
		if row.Name == name {
			return row
		}
	}
	return v1alpha1.ComponentStatus{}
}

// versions returns the resource versions of all objects that the operator writes.
func (s *scenario) versions(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{"OVNCluster": s.cluster(t).ResourceVersion}
	for _, kind := range append(ownedKinds(), policyKinds()...) {
		gvk, err := apiutil.GVKForObject(kind, s.admin.Scheme())
		if err != nil {
			t.Fatal(err)
		}
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(gvk)
		if err := s.admin.List(t.Context(), list, client.MatchingLabels{render.ManagedByLabel: render.ManagedBy}); err != nil {
			t.Fatal(err)
		}
		if err := meta.EachListItem(list, func(o runtime.Object) error {
			m := o.(*metav1.PartialObjectMetadata)
			all[gvk.Kind+"/"+m.Name] = m.ResourceVersion
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// passAfter makes a change that wakes the operator, and waits until a pass that began after it has ended, and no other one is due. It is for what
// the operator must not do: if the pass did not do it, no later one will.
func (s *scenario) passAfter(t *testing.T, change func()) {
	t.Helper()
	before := s.idle(t)
	change()
	newG(t).Eventually(func() bool { return s.idle(t) > before }).Should(BeTrue())
}

// idle waits until the operator has no pass to make, and returns the number of its passes so far. A pass that is taken out of the queue is for a
// moment neither queued nor running: two looks must agree.
func (s *scenario) idle(t *testing.T) (passes float64) {
	t.Helper()
	last := -1.0
	newG(t).Eventually(func() bool {
		before, idle := last, load(t) == s.idleLoad
		passes = 0
		for labels, n := range series(t, "controller_runtime_reconcile_total") {
			if strings.HasPrefix(labels, "ovncluster ") {
				passes += n
			}
		}
		last = passes
		return idle && passes == before
	}).Should(BeTrue())
	return passes
}

// stable waits until the operator has no work left: it was idle, and the objects that it watches did not change, for a
// while.
func (s *scenario) stable(t *testing.T) map[string]string {
	t.Helper()
	var last map[string]string
	newG(t).Eventually(func() bool {
		before, now := last, s.versions(t)
		last = now
		return load(t) == s.idleLoad && maps.Equal(before, now)
	}).WithPolling(500 * time.Millisecond).Should(BeTrue())
	return last
}
