// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package policy turns policies into ACLs, and the sets of pods that they share into port groups and address sets.
package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/grants"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/podset"
	"github.com/kiln-net/kiln/internal/reconciler"
	"github.com/kiln-net/kiln/internal/serving/budget"
)

// ReasonNotExpressed is the event of a policy with a part that cannot be expressed in OVN. That part allows nothing.
const ReasonNotExpressed = "PolicyNotExpressed"

// ReasonIgnored is the event of a NetworkPolicy that Kiln does not apply.
const ReasonIgnored = "PolicyIgnored"

// ignored is the message of policies that Kiln does not apply.
const ignored = "policies.networkPolicies of the OVNCluster is Ignored: another component has to enforce this policy"

// workers is the number of policies, and of sets, that are reconciled in parallel. A worker mostly waits for a reply of the database;
// parallel changes share a transaction.
const workers = 16

// patience is the longest time that the ACLs of a policy wait until its pods are in their sets. It limits the effect of one pod that cannot
// be applied on policies that select it. Usually an event ends the wait, so that k8s.OnlyEvents makes it endless in tests.
const patience = 5 * time.Second

// Reconciler maintains the ACLs of NetworkPolicies and security groups, and the sets of pods that policies share.
type Reconciler struct {
	Client     client.Client
	Northbound *northbound.Engine
	Sets       *podset.Index
	// Grants reports which security groups pods are in.
	Grants   *grants.Rules
	Recorder events.EventRecorder
	Gate     *reconciler.StartGate
	// Ignore: NetworkPolicies and cluster-wide policies get no rows (v1alpha1.NetworkPoliciesIgnored).
	Ignore bool
	// UnnamedDelay is the age at which a NetworkPolicy with a port name that none of its pods has gets an event; a minute if it is 0.
	UnnamedDelay time.Duration
	// Now is the clock; nil: time.Now.
	Now func() time.Time

	policies, groups, sets k8s.RequestSource

	budget   budget.Budget
	logs     logs
	patience patient
	reported reconciler.Reports[desired.Owner, string]
	unnamed  reconciler.Reports[desired.Owner, string]
	optional map[string]*clusterReconciler // by kind
}

// SetupWithManager adds the controllers of NetworkPolicies, security groups, sets of pods, isolation (rules for all isolated pods) and
// optional kinds of policies.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	measured.Store(r)
	r.optional = map[string]*clusterReconciler{}
	for _, k := range clusterKinds {
		r.optional[k.name] = &clusterReconciler{Reconciler: r, kind: k}
	}
	r.Sets.Observe(r.changed)
	err := ctrl.NewControllerManagedBy(mgr).
		Named("networkpolicy").
		For(&networkingv1.NetworkPolicy{}, builder.WithPredicates(predicate.Or(
			predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		WatchesRawSource(&r.policies).
		WatchesRawSource(reconciler.Drift(r.Northbound, translate.KindNetworkPolicy)).
		WatchesRawSource(reconciler.Orphans(mgr.GetCache(), r.Gate, &networkingv1.NetworkPolicy{},
			reconciler.OwnersOf(r.Northbound, translate.KindNetworkPolicy))).
		WithOptions(r.Gate.Workers(workers)).
		Complete(r.Gate.Reconciler(r))
	return errors.Join(err, r.setupGroups(ctx, mgr), r.setupSets(mgr), r.setupIsolation(mgr), r.setupOptional(mgr), r.setupLogs(mgr))
}

// changed enqueues the sets and policies that a change of the index affects. It never blocks.
func (r *Reconciler) changed(c podset.Changes) {
	for _, s := range c.Sets {
		r.sets.Add(s.Name())
	}
	for _, owner := range c.Users {
		switch owner.Kind {
		case translate.KindNetworkPolicy:
			r.policies.AddKey(client.ObjectKey{Namespace: owner.Namespace, Name: owner.Name})
		case translate.KindSecurityGroup:
			r.groups.Add(owner.Name)
		default:
			if c := r.optional[owner.Kind]; c != nil {
				c.requests.Add(owner.Name)
			}
		}
	}
}

// Reconcile applies the ACLs of one NetworkPolicy. New sets are filled before the ACLs change; unused sets are removed afterwards.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	owner := translate.NetworkPolicyOwner(req.Namespace, req.Name)
	np, err := k8s.Find[networkingv1.NetworkPolicy](ctx, r.Client, req.NamespacedName, client.UnsafeDisableDeepCopy)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("get NetworkPolicy: %w", err)
	}
	if np == nil {
		r.reported.Forget(owner)
		r.unnamed.Forget(owner)
		return r.removePolicy(ctx, req.NamespacedName)
	}
	if r.Ignore {
		if r.reported.New(owner, ignored) {
			k8s.Note(r.Recorder, np, ReasonIgnored, ignored)
		}
		return r.removePolicy(ctx, req.NamespacedName)
	}
	var last compiled
	result, err := r.apply(ctx, owner, func() compiled {
		last = r.compile(np)
		return last
	})
	if problems := strings.Join(last.problems, "; "); r.reported.New(owner, problems) {
		k8s.Warn(r.Recorder, np, ReasonNotExpressed, problems)
	}
	written := err == nil && result.RequeueAfter == 0
	for _, left := range []time.Duration{r.reportUnnamed(owner, np, &last), last.logLeft} {
		if left > 0 && (result.RequeueAfter == 0 || left < result.RequeueAfter) {
			result.RequeueAfter = left
		}
	}
	if !written { // the previous ACLs may still name the meter
		return result, k8s.Unless(err, northbound.ErrWaiting)
	}
	return result, r.writeMeter(ctx, np.Namespace)
}

// removePolicy removes the rows of a NetworkPolicy.
func (r *Reconciler) removePolicy(ctx context.Context, key client.ObjectKey) (ctrl.Result, error) {
	r.spend(key, time.Time{}, 0)
	r.forgetLogs(translate.NetworkPolicyOwner(key.Namespace, key.Name))
	result, err := r.apply(ctx, translate.NetworkPolicyOwner(key.Namespace, key.Name), func() compiled { return compiled{} })
	if err != nil {
		return result, err
	}
	return result, r.writeMeter(ctx, key.Namespace)
}

// ReasonPortNameUnknown is the event of a NetworkPolicy with a port name that none of the selected pods has.
const ReasonPortNameUnknown = "PortNameUnknown"

// unnamedDelay is the default of UnnamedDelay: pods are often created together with their policy, or after it.
const unnamedDelay = time.Minute

// reportUnnamed reports an event on a policy with port names that no selected pod has, or no peer of an egress rule. It returns the time until a new policy has to be read again.
func (r *Reconciler) reportUnnamed(owner desired.Owner, np *networkingv1.NetworkPolicy, c *compiled) time.Duration {
	var missing []string
	if len(c.unnamed) > 0 {
		missing = append(missing, "no pod that the policy selects has a port of the name "+k8s.Some(c.unnamed, maxUnnamed))
	}
	if len(c.unnamedPeers) > 0 {
		missing = append(missing, "no pod that its egress rules select has a port of the name "+k8s.Some(c.unnamedPeers, maxUnnamed))
	}
	message := ""
	if len(missing) > 0 {
		if left := cmp.Or(r.UnnamedDelay, unnamedDelay) - time.Since(np.CreationTimestamp.Time); left > 0 {
			return left
		}
		message = strings.Join(missing, ", and ") + ": its rule for that port allows nothing: write the name as in the pods, or a number"
	}
	if r.unnamed.New(owner, message) {
		k8s.Warn(r.Recorder, np, ReasonPortNameUnknown, message)
	}
	return 0
}

// maxUnnamed is the number of port names in a message.
const maxUnnamed = 5

// compile compiles a NetworkPolicy and applies the bound of its namespace.
func (r *Reconciler) compile(np *networkingv1.NetworkPolicy) compiled {
	c := networkPolicy(np, r.Sets.Numbers)
	if !r.spend(client.ObjectKeyFromObject(np), np.CreationTimestamp.Time, c.flows) {
		c.refuse()
	}
	r.logDrops(np.Annotations, &c)
	r.limitLogs(np, &c)
	if c.logProblem != "" {
		c.problems = append(c.problems, c.logProblem)
	}
	return c
}

// spend records the flows of a policy and reports whether it is within the bound of its namespace. It enqueues other policies whose verdict
// has changed.
func (r *Reconciler) spend(key client.ObjectKey, created time.Time, flows int) bool {
	verdict, others := r.budget.Set(namespaceBounds, budget.Object{Key: key, Group: key.Namespace, Created: created, Cost: flows})
	for _, other := range others {
		r.policies.AddKey(other)
	}
	return verdict == budget.Within
}

// apply writes the rows of a policy to the database. It waits until the pods of new sets are in these sets, so that traffic that both the
// old and the new rules allow is never dropped. Old sets stay until the new rows are committed. The error is northbound.ErrWaiting until
// the port group of the subjects exists, which requeues the policy.
func (r *Reconciler) apply(ctx context.Context, owner desired.Owner, compile func() compiled) (ctrl.Result, error) {
	r.Sets.Use(owner, compile().uses)
	if !r.Sets.Complete(owner) {
		if left := r.patience.left(owner); left > 0 {
			return ctrl.Result{RequeueAfter: left}, nil
		}
	}
	r.patience.over(owner)
	c := compile() // compile again: new sets now have the numbers of their ports
	if c.logRate > 0 {
		if err := r.writeMeter(ctx, translate.LogsOf(owner)); err != nil {
			return ctrl.Result{}, err
		}
	}
	err := r.Northbound.Apply(ctx, owner, c.rows())
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("apply ACLs: %w", err)
	}
	r.Sets.Settle(owner)
	return ctrl.Result{}, nil
}

// Restore fills the index of pods and sets. It must run before anything is applied: a pod that is applied while the index lacks its
// policies would leave their sets.
func (r *Reconciler) Restore(ctx context.Context) error {
	uses := map[desired.Owner][]podset.Selector{}
	err := errors.Join(r.restoreGroups(ctx, uses), r.restoreEgress(ctx, uses))
	if !r.Ignore {
		err = errors.Join(err, r.restorePolicies(ctx, uses), r.restoreOptional(ctx, uses))
	}
	if err != nil {
		return err
	}
	return r.Sets.Load(func() (podset.World, error) { return r.world(ctx, uses) })
}

// restorePolicies adds the sets that NetworkPolicies use.
func (r *Reconciler) restorePolicies(ctx context.Context, uses map[desired.Owner][]podset.Selector) error {
	var policies networkingv1.NetworkPolicyList
	if err := r.Client.List(ctx, &policies, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list NetworkPolicies: %w", err)
	}
	for i := range policies.Items {
		c := r.compile(&policies.Items[i])
		uses[c.Owner] = c.uses
	}
	return nil
}

// world reads the namespaces and pods that policies can select.
func (r *Reconciler) world(ctx context.Context, uses map[desired.Owner][]podset.Selector) (podset.World, error) {
	w := podset.World{Namespaces: map[string]map[string]string{}, Uses: uses, Connected: map[podset.Key]bool{}}
	var namespaces corev1.NamespaceList
	var pods corev1.PodList
	for _, list := range []client.ObjectList{&namespaces, &pods} {
		if err := r.Client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return w, fmt.Errorf("list what policies are about: %w", err)
		}
	}
	for i := range namespaces.Items {
		w.Namespaces[namespaces.Items[i].Name] = namespaces.Items[i].Labels
	}
	for i := range pods.Items {
		if p := &pods.Items[i]; podset.Counts(p) {
			groups, err := r.Grants.Groups(ctx, p.Namespace, kubeovnv1.ParseSecurityGroups(p.Annotations), kubeovnv1.KeptSecurityGroups(p))
			if err != nil {
				return w, err
			}
			member := podset.Of(p, kubeovnv1.ProviderOVN, groups.Sets())
			w.Pods = append(w.Pods, member)
			w.Connected[member.Key] = connected(p)
		}
	}
	w.Led = r.led(pods.Items)
	return w, nil
}

// patient holds the time at which each policy began to wait for its sets.
type patient struct {
	mu    sync.Mutex
	since map[desired.Owner]time.Time
}

// left returns the remaining waiting time of a policy. The first call starts the wait.
func (p *patient) left(owner desired.Owner) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	since, waits := p.since[owner]
	if !waits {
		if p.since == nil {
			p.since = map[desired.Owner]time.Time{}
		}
		since = time.Now()
		p.since[owner] = since
	}
	return k8s.Periodic(patience) - time.Since(since)
}

// over ends the wait of a policy.
func (p *patient) over(owner desired.Owner) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.since, owner)
}

// connected reports whether a pod may have a port in the database, according to its annotations.
func connected(p *corev1.Pod) bool {
	return !p.Spec.HostNetwork && p.Annotations[kubeovnv1.AnnotationAllocated.Key()] == "true"
}
