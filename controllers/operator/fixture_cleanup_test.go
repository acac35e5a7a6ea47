// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/certs"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/supervisor/adminapi"
)

// restoreLimit is the time that restore has. An installation that needs longer is deleted.
const restoreLimit = 20 * time.Second

var databases = []render.Database{render.Northbound, render.Southbound}

// restore brings an installation into the state in which install left it, and reports whether it succeeded. It reverts
// changes of the spec, of the databases' records, of reports of members, and of nodes and pods. It does not replace pods of
// databases with another template, and does not create CAs again.
func (s *scenario) restore(t *testing.T) bool {
	t.Helper()
	s.resetFakes()
	s.restoreNodes(t)
	s.changeSpec(t, func(spec *v1alpha1.OVNClusterSpec) { *spec = *s.first.Spec.DeepCopy() })
	newG(t).Eventually(func() bool { // the operator releases a Deployment only while nodes have their pods
		c := s.cluster(t)
		return c.Status.ObservedGeneration == c.Generation && load(t) == s.idleLoad
	}).Should(BeTrue())
	if !s.restorePods(t) {
		return false
	}
	s.poke(t, fmt.Sprint(time.Now().UnixNano()))
	recorded := false
	for began := time.Now(); time.Since(began) < restoreLimit; <-time.After(often) {
		if load(t) != s.idleLoad {
			continue
		}
		if !recorded { // after the last pass that may have read the earlier reports
			s.restoreRecords(t)
			recorded = true
			continue
		}
		for _, w := range settled() { // the operator may have changed the template
			s.settle(t, s.named(w.object, w.name), w.pods)
		}
		if s.complete(t) && s.recordsAsFirst(t) && load(t) == s.idleLoad {
			return true
		}
	}
	t.Logf("the installation cannot be restored: %s; %s; records as first: %v", s.condition(t, "Progressing")(), s.condition(t, "Degraded")(), s.recordsAsFirst(t))
	return false
}

// resetFakes resets the clock and the answers of members and pods.
func (s *scenario) resetFakes() {
	s.ahead.Store(0)
	s.programs.reset()
	s.world.members.setCutOff(netip.Addr{})
	for _, db := range []struct {
		render.Database
		id string
	}{{render.Northbound, northboundID}, {render.Southbound, southboundID}} {
		if m := s.members[db.Flag]; m != nil {
			m.offer("", "")
			m.set(func(status *adminapi.Status) { *status = leading(db.Database, db.id) })
			m.silent(nil)
		}
	}
}

func (s *scenario) restoreNodes(t *testing.T) {
	t.Helper()
	var nodes corev1.NodeList
	g := newG(t)
	g.Expect(s.admin.List(t.Context(), &nodes)).To(Succeed())
	for i := range nodes.Items {
		n := &nodes.Items[i]
		if !slices.Contains([]string{node, "worker-1", "windows"}, n.Name) {
			g.Expect(s.admin.Delete(t.Context(), n)).To(Succeed())
		}
	}
	s.setNode(t, "worker-1", func(n *corev1.Node) {
		n.Labels = map[string]string{corev1.LabelOSStable: "linux"}
		n.Status.Conditions[0].Status = corev1.ConditionFalse
	})
}

// restorePods deletes all pods besides those of the databases, which must have the current template.
func (s *scenario) restorePods(t *testing.T) bool {
	t.Helper()
	var pods corev1.PodList
	g := newG(t)
	g.Expect(s.admin.List(t.Context(), &pods, client.InNamespace(testNamespace))).To(Succeed())
	kept := 0
	for i := range pods.Items {
		pod := &pods.Items[i]
		db := slices.IndexFunc(databases, func(db render.Database) bool { return pod.Name == db.Workload+"-0" })
		if db < 0 {
			g.Expect(client.IgnoreNotFound(s.admin.Delete(t.Context(), pod, client.GracePeriodSeconds(0)))).To(Succeed())
			continue
		}
		set := &appsv1.StatefulSet{}
		g.Expect(s.exists(t, set, databases[db].Workload)()).To(Succeed())
		if pod.Annotations[render.TemplateAnnotation] != revisionOf(set) || !pod.DeletionTimestamp.IsZero() {
			return false
		}
		s.settle(t, set, 1)
		s.setReady(t, pod, true)
		s.pods[databases[db].Flag] = pod
		kept++
	}
	return kept == len(databases)
}

// restoreRecords writes the first records of databases and images into the status.
func (s *scenario) restoreRecords(t *testing.T) {
	t.Helper()
	c := s.cluster(t)
	before, first := c.DeepCopy(), s.first.DeepCopy()
	c.Status.Northbound, c.Status.Southbound, c.Status.Upgrade = first.Status.Northbound, first.Status.Southbound, first.Status.Upgrade
	newG(t).Expect(s.admin.Status().Patch(t.Context(), c, client.MergeFrom(before))).To(Succeed())
}

func (s *scenario) recordsAsFirst(t *testing.T) bool {
	t.Helper()
	now, first := s.cluster(t).Status, s.first.Status
	return equality.Semantic.DeepEqual(now.Northbound, first.Northbound) && equality.Semantic.DeepEqual(now.Southbound, first.Southbound) &&
		equality.Semantic.DeepEqual(now.Upgrade, first.Upgrade)
}

// discard deletes the installation that an earlier test left, if there is one.
func (w *world) discard(t testing.TB) {
	t.Helper()
	if s := w.standing; s != nil {
		w.standing = nil
		s.clear(t)
	}
}

// clear deletes all objects of the scenario and waits until the operator has observed that. No garbage collector runs here.
func (s *scenario) clear(t testing.TB) {
	t.Helper()
	ctx, operator := context.Background(), s.operator(t)
	if err := s.deleteCluster(ctx); err != nil {
		t.Errorf("delete the OVNCluster: %v", err)
	}
	// Without an OVNCluster an idle operator stays idle.
	eventually.Wait{For: "the end of the last pass"}.Holds(t, func() bool {
		return load(t) == s.idleLoad && apierrors.IsNotFound(operator.Get(ctx, client.ObjectKey{Name: v1alpha1.OVNClusterName}, &v1alpha1.OVNCluster{}))
	})
	ours := client.MatchingLabels{render.ManagedByLabel: render.ManagedBy}
	for _, kind := range slices.Concat(ownedKinds(), policyKinds()) {
		if err := s.admin.DeleteAllOf(ctx, kind, client.InNamespace(testNamespace), ours); err != nil {
			t.Errorf("delete %T: %v", kind, err)
		}
	}
	for _, kind := range []client.Object{&corev1.Secret{}, &corev1.Pod{}, &corev1.Node{}} {
		if err := s.admin.DeleteAllOf(ctx, kind, client.InNamespace(testNamespace), client.GracePeriodSeconds(0)); err != nil {
			t.Errorf("delete %T: %v", kind, err)
		}
	}
	if err := s.admin.DeleteAllOf(ctx, &eventsv1.Event{}, client.InNamespace(metav1.NamespaceDefault)); err != nil {
		t.Errorf("delete events: %v", err)
	}
	mark := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: strictMark}}
	if err := s.admin.Delete(ctx, mark); client.IgnoreNotFound(err) != nil {
		t.Errorf("delete ConfigMap %s: %v", strictMark, err)
	}
	for _, db := range databases {
		s.world.members.close(db.AdminPort)
	}
	s.resetFakes()
	eventually.Wait{For: "empty caches of the operator"}.Empty(t, func() string { return s.cachedObject(ctx) })
}

// cachedObject returns an object that is still in the operator's caches.
func (s *scenario) cachedObject(ctx context.Context) string {
	r := s.operate
	kinds := append(ownedKinds(), &corev1.Pod{}, &corev1.Node{})
	if r.kinds.watchesPolicies {
		kinds = append(kinds, policyKinds()...)
	}
	for _, kind := range kinds {
		gvk, err := apiutil.GVKForObject(kind, r.Scheme())
		if err != nil {
			return err.Error()
		}
		list, err := r.Scheme().New(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
		if err == nil {
			err = r.List(ctx, list.(client.ObjectList))
		}
		if err != nil {
			return err.Error()
		}
		if meta.LenList(list) > 0 {
			return gvk.Kind
		}
	}
	for _, name := range certs.SecretNames() {
		if secret, err := r.certificates.secrets.Cached(ctx, name); secret != nil || err != nil {
			return fmt.Sprintf("Secret %s %v", name, err)
		}
	}
	return ""
}

// deleteCluster deletes the OVNCluster without the operator.
func (s *scenario) deleteCluster(ctx context.Context) error {
	c := &v1alpha1.OVNCluster{}
	if err := s.admin.Get(ctx, client.ObjectKey{Name: v1alpha1.OVNClusterName}, c); err != nil {
		return client.IgnoreNotFound(err)
	}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"`+v1alpha1.AnnotationAllowRemoval+`":"true"}}}`))
	if err := s.admin.Patch(ctx, c, patch); err != nil {
		return client.IgnoreNotFound(err)
	}
	if err := s.admin.Delete(ctx, c); err != nil {
		return client.IgnoreNotFound(err)
	}
	patch = client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	return client.IgnoreNotFound(s.admin.Patch(ctx, c, patch))
}
