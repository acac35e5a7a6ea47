// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/pki"
)

// pass is what one reconciliation reads and finds.
type pass struct {
	now time.Time
	// before is the OVNCluster as it was read; cluster is the copy whose status the phases change.
	before, cluster *v1alpha1.OVNCluster
	// nodes that run Linux, sorted by name, and foreign ones, which have no network of ours.
	nodes, foreign []corev1.Node
	pods           []corev1.Pod
	config         render.Config
	authorities    map[string]*pki.Authority
	// issuance is how far the issuer of authorities is, when there is one.
	issuance issuance
	// kept is the inventory: what the phases applied.
	kept map[objectKey]bool
	// live are the workloads as the API server returned them in this pass, which a cache may not hold yet.
	live map[string]client.Object
	// archive are the backups on the claim, if there is one.
	archive archive
	// upgrade is what may be replaced, once it is planned.
	upgrade upgradePlan
	planned bool
	// unfit nodes get no member of a database. nodeTroubles need a person.
	unfit        []string
	nodeTroubles []nodeTrouble
	// protection is that by admission policies.
	protection protection
	// notes are what components wait for beside their pods, by name.
	notes map[string][]note
	// wake is when there will be something to do that no watch tells; zero is never.
	wake time.Time
}

// note is what a component waits for; stuck: for a person.
type note struct {
	text  string
	stuck bool
}

// halt ends a pass before its last phase. It is no failure: the status says what is waited for or what is wrong.
type halt struct {
	reason, message string
	// degraded: a person has to do something. Otherwise the operator only waits.
	degraded bool
	// retry is what went wrong when no watch will tell of its end, so that the pass must be tried again.
	retry error
}

func (h *halt) Error() string { return h.message }

// Unwrap makes the reason for trying again visible to errors.Is.
func (h *halt) Unwrap() error { return h.retry }

// untold is what has to be tried again of what ended a pass, each database's for itself: a halt that waits for a watch says nothing of the
// others.
func untold(err error) error {
	switch e := err.(type) { //nolint:errorlint // it takes the error apart
	case *halt:
		return e.retry
	case interface{ Unwrap() []error }:
		var all []error
		for _, one := range e.Unwrap() {
			all = append(all, untold(one))
		}
		return errors.Join(all...)
	}
	if h := (*halt)(nil); errors.As(err, &h) {
		return untold(errors.Unwrap(err))
	}
	return err
}

// gather reads the inputs of a pass. It returns nil when there is nothing to do: no OVNCluster, or one that only others still hold.
func (r *Reconciler) gather(ctx context.Context, name string) (*pass, error) {
	var cluster v1alpha1.OVNCluster
	err := r.Get(ctx, types.NamespacedName{Name: name}, &cluster)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get OVNCluster %s: %w", name, err)
	}
	if !cluster.DeletionTimestamp.IsZero() {
		// A cache that does not know yet that it is gone would have the nodes cleaned again, with nobody to end that.
		if err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(&cluster), &cluster); err != nil {
			return nil, client.IgnoreNotFound(fmt.Errorf("get OVNCluster %s: %w", name, err))
		}
		if !slices.Contains(cluster.Finalizers, Finalizer) {
			return nil, nil
		}
	}
	var nodes corev1.NodeList
	if err := r.List(ctx, &nodes); err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	var pods corev1.PodList
	if err := r.List(ctx, &pods, client.InNamespace(r.Namespace), client.MatchingLabels{render.PartOfLabel: render.PartOf}); err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	// A cache lists in any order, and what the status says must not depend on it.
	slices.SortFunc(nodes.Items, func(a, b corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(pods.Items, func(a, b corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	pods.Items = slices.DeleteFunc(pods.Items, leftBehind)
	ours, foreign := bySystem(nodes.Items)
	return &pass{
		now:     r.Now(),
		before:  &cluster,
		cluster: cluster.DeepCopy(),
		nodes:   ours,
		foreign: foreign,
		pods:    pods.Items,
		kept:    map[objectKey]bool{},
		live:    map[string]client.Object{},
		notes:   map[string][]note{},
	}, nil
}

// leftBehind says whether a Deployment has another pod in place of this one, which has ended: a kubelet leaves such pods when its node is shut
// down, or has no room for them, and they stay for as long as nobody deletes them.
func leftBehind(pod corev1.Pod) bool {
	owner := metav1.GetControllerOf(&pod)
	return owner != nil && owner.Kind == "ReplicaSet" && (pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded)
}

// removing says whether the OVNCluster is being deleted.
func (p *pass) removing() bool { return !p.cluster.DeletionTimestamp.IsZero() }

// note adds to what a component waits for.
func (p *pass) note(component string, n note) { p.notes[component] = append(p.notes[component], n) }

// wakeAt asks for another pass at this time.
func (p *pass) wakeAt(t time.Time) {
	if p.wake.IsZero() || t.Before(p.wake) {
		p.wake = t
	}
}

func (p *pass) node(name string) *corev1.Node {
	at, found := sort.Find(len(p.nodes), func(i int) int { return cmp.Compare(name, p.nodes[i].Name) })
	if !found {
		return nil
	}
	return &p.nodes[at]
}

// podsOf are the pods of one workload.
func (p *pass) podsOf(component string) []*corev1.Pod {
	var all []*corev1.Pod
	for i := range p.pods {
		if p.pods[i].Labels[render.ComponentLabel] == component {
			all = append(all, &p.pods[i])
		}
	}
	return all
}

// database is the status of one database.
func (p *pass) database(db render.Database) *v1alpha1.DatabaseStatus {
	if db.Flag == render.Southbound.Flag {
		return &p.cluster.Status.Southbound
	}
	return &p.cluster.Status.Northbound
}
