// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
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

// logs holds which NetworkPolicies log, and at which rates. The policies of a namespace share one meter. Its rate is the sum of their rates, at most maxLogRate.
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

// logDrops makes the default rules of a policy log until the time of its annotation. A value that cannot be read, or is too far ahead, is reported as a problem.
func (r *Reconciler) logDrops(np *networkingv1.NetworkPolicy, c *compiled) {
	value := strings.TrimSpace(np.Annotations[kubeovnv1.AnnotationLogDropsUntil.Key()])
	if value == "" || c.Subjects == "" {
		return
	}
	until, err := time.Parse(time.RFC3339, value)
	left := until.Sub(r.now())
	switch {
	case err != nil || left > kubeovnv1.MaxLogDrops:
		c.problems = append(c.problems, fmt.Sprintf("annotation %s is %.40q: write a time that is at most %s ahead, such as 2026-11-30T16:00:00Z",
			kubeovnv1.AnnotationLogDropsUntil.Key(), value, kubeovnv1.MaxLogDrops))
	case left > 0:
		c.logLeft = left
		for i := range c.Rules {
			c.Rules[i].Log = c.Rules[i].Log || c.Rules[i].Action == nb.ACLActionDrop
		}
	}
}

func (r *Reconciler) now() time.Time {
	if r.Now != nil {
		return r.Now()
	}
	return time.Now()
}

// limitLogs records how a policy logs. Its rules do not log if they exceed the bound of the namespace together with those of older policies.
func (r *Reconciler) limitLogs(np *networkingv1.NetworkPolicy, c *compiled) {
	key, logging := types.NamespacedName{Namespace: np.Namespace, Name: np.Name}, 0
	for i := range c.Rules {
		if c.Rules[i].Log {
			logging++
		}
	}
	verdict, others := r.logs.budget.Set(logBounds, budget.Object{Key: key, Group: key.Namespace, Created: np.CreationTimestamp.Time, Cost: logging})
	for _, other := range others {
		r.policies.AddKey(other)
	}
	if verdict != budget.Within {
		for i := range c.Rules {
			c.Rules[i].Log = false
		}
		c.problems = append(c.problems, fmt.Sprintf("this policy logs nothing: together with the older NetworkPolicies of its namespace it has more than %d rules that log: "+
			"remove enable_log and log_drops_until from some of them", maxLoggingRules))
	}
	if verdict != budget.Within || logging == 0 {
		c.logRate = 0
	}
	r.logs.set(key, c.logRate)
}

// forgetLogs removes a policy that does not exist or is not applied.
func (r *Reconciler) forgetLogs(key types.NamespacedName) {
	_, others := r.logs.budget.Set(logBounds, budget.Object{Key: key, Group: key.Namespace})
	for _, other := range others {
		r.policies.AddKey(other)
	}
	r.logs.set(key, 0)
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
