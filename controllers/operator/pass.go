// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/certs"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/controllers/operator/rollout"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/pki"
)

// pass holds the inputs and the results of one reconciliation.
type pass struct {
	now time.Time
	// before is the OVNCluster as the pass read it. Phases change the status of the copy in cluster.
	before, cluster *v1alpha1.OVNCluster
	// nodes are the nodes that run Linux, sorted by name. foreign are all others; they have no network of Kiln.
	nodes, foreign []corev1.Node
	pods           []corev1.Pod
	config         render.Config
	authorities    map[string]*pki.Authority
	// issuer is the progress of the issuer of the CAs, if there is one.
	issuer certs.Progress
	// inventory has the objects that the phases applied.
	inventory map[objectKey]bool
	// live are the workloads as the API server returned them in this pass. The cache may still be stale.
	live map[string]client.Object
	// archive lists the backups on the claim, if there is one.
	archive archive
	// observed are the pods, and upgrade allows replacements of them. Both are valid once planned is set.
	observed rollout.Upgrade
	upgrade  rollout.Plan
	planned  bool
	// unfit nodes get no database member. nodeTroubles need a person.
	unfit        []string
	nodeTroubles []nodeTrouble
	// addressless are nodes that have no InternalIP, since this time.
	addressless map[string]time.Time
	// oldKubernetes is the problem with the version of the API server, if it is too old.
	oldKubernetes string
	// advice is a recommendation that the condition Available reports while the cluster has no problem.
	advice string
	// images are those of the optional operands that depend on a level, and stopped are the ones that must not run.
	images  map[string]string
	stopped []string
	// protection is the state of the admission policies.
	protection protection
	// waiting are the reasons why members of databases have not started their servers, by pod.
	waiting map[string]string
	// notes are further reasons to wait, by component.
	notes map[string][]note
	// wake is the time of the next pass if no watch triggers one before; zero for never.
	wake time.Time
}

// note is a reason why a component waits. stuck is set if a person has to act, aside if the component serves fully meanwhile.
type note struct {
	text         string
	stuck, aside bool
}

// halt ends a pass before its last phase. It is not an error: the status reports the reason.
type halt struct {
	reason, message string
	// degraded is set if a person has to act. Otherwise the operator only waits.
	degraded bool
	// retry is an error that no watch will report as resolved. The pass is requeued for it.
	retry error
}

func (h *halt) Error() string { return h.message }

// Unwrap makes retry visible to errors.Is.
func (h *halt) Unwrap() error { return h.retry }

// retryable returns the errors of a pass that need a requeue. It drops a halt without retry, because a watch ends it. In
// joined errors, one per database, it treats each error separately.
func retryable(err error) error {
	switch e := err.(type) { //nolint:errorlint // it takes the error apart
	case *halt:
		return e.retry
	case interface{ Unwrap() []error }:
		var all []error
		for _, one := range e.Unwrap() {
			all = append(all, retryable(one))
		}
		return errors.Join(all...)
	}
	if h := (*halt)(nil); errors.As(err, &h) {
		return retryable(errors.Unwrap(err))
	}
	return err
}

// divide returns the halts of a pass as one halt with all messages, and its other errors. A pass has several results if it runs the
// southbound database although the northbound one halted.
func divide(err error) (h *halt, rest error) {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		if errors.As(err, &h) {
			return h, nil
		}
		return nil, err
	}
	for _, one := range joined.Unwrap() {
		next, err := divide(one)
		rest = errors.Join(rest, err)
		switch {
		case next == nil:
		case h == nil:
			h = next
		default:
			h = &halt{reason: h.reason, message: h.message + "; " + next.message, degraded: h.degraded || next.degraded}
		}
	}
	return h, rest
}

// gather reads the inputs of a pass. It returns nil if there is nothing to do: the OVNCluster does not exist, or it is
// being deleted and has only finalizers of others.
func (r *Reconciler) gather(ctx context.Context, name string) (*pass, error) {
	cluster, err := k8s.Find[v1alpha1.OVNCluster](ctx, r, types.NamespacedName{Name: name})
	if err != nil {
		return nil, fmt.Errorf("get OVNCluster %s: %w", name, err)
	}
	if cluster == nil {
		return nil, nil
	}
	if !cluster.DeletionTimestamp.IsZero() {
		// A stale cache may still have the deleted object. The pass would then clean the nodes again, with no further
		// pass to stop that.
		if err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(cluster), cluster); err != nil {
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
	if err := r.List(ctx, &pods, client.InNamespace(r.Namespace), client.MatchingLabels{v1alpha1.PartOfLabel: v1alpha1.PartOf}); err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	// Lists from the cache are unordered, and the status must not depend on the order.
	slices.SortFunc(nodes.Items, func(a, b corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(pods.Items, func(a, b corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	pods.Items = slices.DeleteFunc(pods.Items, leftBehind)
	ours, foreign := bySystem(nodes.Items)
	return &pass{
		now:       r.Now(),
		before:    cluster,
		cluster:   cluster.DeepCopy(),
		nodes:     ours,
		foreign:   foreign,
		pods:      pods.Items,
		inventory: map[objectKey]bool{},
		live:      map[string]client.Object{},
		notes:     map[string][]note{},
		waiting:   map[string]string{},
	}, nil
}

// leftBehind reports whether a pod has ended and its Deployment has replaced it. A kubelet leaves such pods when its node
// shuts down or lacks resources, and they stay until they are deleted.
func leftBehind(pod corev1.Pod) bool {
	owner := metav1.GetControllerOf(&pod)
	return owner != nil && owner.Kind == "ReplicaSet" && (pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded)
}

// removing reports whether the OVNCluster is being deleted.
func (p *pass) removing() bool { return !p.cluster.DeletionTimestamp.IsZero() }

// note adds a reason why a component waits.
func (p *pass) note(component string, n note) { p.notes[component] = append(p.notes[component], n) }

// wakeAt requests another pass at this time.
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

// podsOf returns the pods of one workload.
func (p *pass) podsOf(component string) []*corev1.Pod {
	var all []*corev1.Pod
	for i := range p.pods {
		if p.pods[i].Labels[v1alpha1.ComponentLabel] == component {
			all = append(all, &p.pods[i])
		}
	}
	return all
}

// database returns the status of one database.
func (p *pass) database(db render.Database) *v1alpha1.DatabaseStatus {
	if db.Flag == render.Southbound.Flag {
		return &p.cluster.Status.Southbound
	}
	return &p.cluster.Status.Northbound
}

// logWaits logs, at verbosity 1, where the pass ended, why components wait, and when the next pass is due without an event.
func (p *pass) logWaits(log logr.Logger, ended error) {
	log = log.V(1)
	if !log.Enabled() {
		return
	}
	for _, component := range slices.Sorted(maps.Keys(p.notes)) {
		for _, n := range p.notes[component] {
			log.Info("a component waits", "component", component, "reason", n.text, "stuck", n.stuck)
		}
	}
	next := "at the next event"
	if !p.wake.IsZero() {
		next = p.wake.UTC().Format(time.RFC3339)
	}
	if ended != nil {
		log.Info("the pass ended early", "reason", ended.Error(), "next", next)
		return
	}
	log.Info("the pass ran all phases", "next", next)
}
