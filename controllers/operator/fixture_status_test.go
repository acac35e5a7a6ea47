// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"maps"
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
