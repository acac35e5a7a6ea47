// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/podset"
	"github.com/kiln-net/kiln/internal/reconciler"
	"github.com/kiln-net/kiln/internal/serving/budget"
)

// Bounds of the logs of a namespace. ovn-controller handles each logged packet in the thread that also answers DHCP and resolves neighbours, and writes a
// line to the log of ovs-ovn, which all namespaces share.
const (
	// maxLogRate is the maximum of packets per second that the policies of a namespace log on a node.
	maxLogRate = 1000
	// maxLoggingRules is the maximum number of rules of a namespace that log.
	maxLoggingRules = 1000
)

// logBounds limits the number of logging rules of a namespace.
var logBounds = budget.Bounds{Group: maxLoggingRules}

// logs holds which policies log, and at which rates. The policies of a namespace share one meter. Its rate is the sum of their rates, at most maxLogRate.
type logs struct {
	budget budget.Budget

	mu    sync.Mutex
	rates map[string]map[string]int // by namespace and policy

	// writing serializes writes of meters, so that an older rate does not replace a newer one.
	writing sync.Mutex
}

// set records the rate of a policy; 0 if it does not log.
func (l *logs) set(policy types.NamespacedName, rate int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.rates[policy.Namespace]
	switch {
	case rate == 0:
		delete(of, policy.Name)
		if len(of) == 0 {
			delete(l.rates, policy.Namespace)
		}
	case of != nil:
		of[policy.Name] = rate
	default:
		if l.rates == nil {
			l.rates = map[string]map[string]int{}
		}
		l.rates[policy.Namespace] = map[string]int{policy.Name: rate}
	}
}

// rate returns the rate of the meter of a namespace; 0 if none of its policies logs.
func (l *logs) rate(namespace string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	sum := 0
	for _, rate := range l.rates[namespace] {
		sum = min(sum+rate, maxLogRate)
	}
	return sum
}

// logDrops makes the rules of a policy that drop packets log until the time of its annotation.
func (r *Reconciler) logDrops(annotations map[string]string, c *compiled) {
	left, err := kubeovnv1.ParseLogDrops(annotations, r.now())
	switch {
	case c.Subjects == "" && c.group == nil:
	case err != nil:
		c.logProblem = err.Error()
	case left > 0:
		c.logLeft, c.logRate = left, cmp.Or(c.logRate, defaultLogRate)
		c.logAllDrops()
	}
}

// logAllDrops makes all rules that drop packets log.
func (c *compiled) logAllDrops() {
	for i := range c.Rules {
		c.Rules[i].Log = c.Rules[i].Log || c.Rules[i].Action == nb.ACLActionDrop
	}
	if c.group != nil {
		c.group.LogDefault = true
		for i := range c.group.Rules {
			c.group.Rules[i].Log = c.group.Rules[i].Action == nb.ACLActionDrop
		}
	}
}

// logNothing makes no rule log.
func (c *compiled) logNothing() {
	for i := range c.Rules {
		c.Rules[i].Log = false
	}
	if c.group != nil {
		c.group.LogDefault = false
		for i := range c.group.Rules {
			c.group.Rules[i].Log = false
		}
	}
}

// logging returns the number of rules that log.
func (c *compiled) logging() (n int) {
	for i := range c.Rules {
		if c.Rules[i].Log {
			n++
		}
	}
	if c.group == nil {
		return n
	}
	for i := range c.group.Rules {
		if c.group.Rules[i].Log {
			n++
		}
	}
	if c.group.LogDefault {
		n += 2 // one of each direction
	}
	return n
}

func (r *Reconciler) now() time.Time {
	if r.Now != nil {
		return r.Now()
	}
	return time.Now()
}

// logKey is the key of a policy in logs and in their budget.
func logKey(owner desired.Owner) types.NamespacedName {
	if owner.Namespace == "" {
		return types.NamespacedName{Namespace: translate.ClusterLogs, Name: owner.Kind + "/" + owner.Name}
	}
	return types.NamespacedName{Namespace: owner.Namespace, Name: owner.Name}
}

// wake enqueues policies by their keys in logs.
func (r *Reconciler) wake(keys []types.NamespacedName) {
	for _, key := range keys {
		owner := translate.NetworkPolicyOwner(key.Namespace, key.Name)
		if key.Namespace == translate.ClusterLogs {
			owner = desired.Owner{}
			owner.Kind, owner.Name, _ = strings.Cut(key.Name, "/")
		}
		r.changed(podset.Changes{Users: []desired.Owner{owner}})
	}
}

// limitLogs records how a policy logs. Its rules do not log if they exceed the bound of the namespace together with those of older policies.
func (r *Reconciler) limitLogs(o client.Object, c *compiled) {
	key, logging := logKey(c.Owner), c.logging()
	verdict, others := r.logs.budget.Set(logBounds, budget.Object{Key: key, Group: key.Namespace, Created: o.GetCreationTimestamp().Time, Cost: logging})
	r.wake(others)
	if verdict != budget.Within {
		c.logNothing()
		of := "NetworkPolicies of its namespace"
		if key.Namespace == translate.ClusterLogs {
			of = "SecurityGroups and cluster-wide policies"
		}
		c.logProblem = fmt.Sprintf("this policy logs nothing: together with the older %s it has more than %d rules that log: "+
			"remove enable_log and log_drops_until from some of them", of, maxLoggingRules)
	}
	if verdict != budget.Within || logging == 0 {
		c.logRate = 0
	}
	r.logs.set(key, c.logRate)
}

// forgetLogs removes a policy that does not exist or is not applied.
func (r *Reconciler) forgetLogs(owner desired.Owner) {
	key := logKey(owner)
	_, others := r.logs.budget.Set(logBounds, budget.Object{Key: key, Group: key.Namespace})
	r.wake(others)
	r.logs.set(key, 0)
}

// settleLogs reports why a SecurityGroup or a cluster-wide policy does not log, reads it again when it logs less, and removes the meter if it was the last that logged.
func (r *Reconciler) settleLogs(ctx context.Context, owner desired.Owner, o client.Object, c *compiled, result ctrl.Result, err error) (ctrl.Result, error) {
	if o == nil {
		r.reported.Forget(owner)
	} else if r.reported.New(owner, c.logProblem) {
		k8s.Warn(r.Recorder, o, ReasonNotExpressed, c.logProblem)
	}
	written := err == nil && result.RequeueAfter == 0
	if c.logLeft > 0 && (result.RequeueAfter == 0 || c.logLeft < result.RequeueAfter) {
		result.RequeueAfter = c.logLeft
	}
	if !written { // the previous ACLs may still name the meter
		return result, k8s.Unless(err, northbound.ErrWaiting)
	}
	return result, r.writeMeter(ctx, translate.LogsOf(owner))
}

// setupLogs adds the controller that restores meters, and deletes meters of namespaces without logging policies.
func (r *Reconciler) setupLogs(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("networkpolicylogs").
		WatchesRawSource(reconciler.Drift(r.Northbound, translate.KindPolicyLogs)).
		WatchesRawSource(reconciler.Orphans(mgr.GetCache(), r.Gate, &networkingv1.NetworkPolicy{}, reconciler.OwnersOf(r.Northbound, translate.KindPolicyLogs))).
		WithOptions(r.Gate.Workers(1)).
		Complete(r.Gate.Reconciler(reconcile.Func(func(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
			return ctrl.Result{}, r.writeMeter(ctx, req.Name)
		})))
}

// writeMeter writes the meter of a namespace if the database has another one. It must precede the first ACL that names the meter, and follow the removal of the last one:
// packets of ACLs whose meter does not exist are logged without a limit.
func (r *Reconciler) writeMeter(ctx context.Context, namespace string) error {
	r.logs.writing.Lock()
	defer r.logs.writing.Unlock()
	rate := r.logs.rate(namespace)
	meter, band := translate.PolicyLogsRefs(namespace)
	current := northbound.Get[nb.MeterBand](r.Northbound, band)
	switch {
	case rate == 0 && current == nil && northbound.Get[nb.Meter](r.Northbound, meter) == nil:
		return nil
	case current != nil && current.Rate == rate && northbound.Get[nb.Meter](r.Northbound, meter) != nil:
		return nil
	}
	if err := r.Northbound.Apply(ctx, translate.PolicyLogsOwner(namespace), translate.PolicyLogs(namespace, rate)); err != nil {
		return fmt.Errorf("apply the meter of logs of namespace %s: %w", namespace, err)
	}
	return nil
}
