// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovnnat

import (
	"cmp"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/serving/budget"
)

// maxPodRules is the number of rules that annotations of the pods of a namespace can request. Each rule has rows in both databases and flows on nodes, and no quota of the
// namespace counts it.
const maxPodRules = 1000

func (r *podRules) bounds() budget.Bounds {
	return budget.Bounds{Group: cmp.Or(r.MaxPodRules, maxPodRules)}
}

// spend records how many rules the pod at a port requests. It enqueues the other owners of the namespace whose verdicts have changed. A port is as old as its pod or its
// oldest rule: a virtual machine that migrates has a new pod.
func (r *podRules) spend(ctx context.Context, owner types.NamespacedName, pod *corev1.Pod) error {
	o := budget.Object{Key: owner, Group: owner.Namespace}
	for _, request := range podRequests {
		selected, err := r.selected(ctx, owner, pod, request.annotation)
		if err != nil {
			return err
		}
		if len(requested(pod, request.annotation)) == 0 && selected.Eip == "" {
			continue
		}
		rules, err := r.rules(ctx, request.kind, owner)
		if err != nil {
			return err
		}
		if o.Cost++; o.Cost == 1 {
			o.Created = pod.CreationTimestamp.Time
		}
		for _, rule := range rules {
			if created := rule.GetCreationTimestamp().Time; created.Before(o.Created) {
				o.Created = created
			}
		}
	}
	_, others := r.spent.Set(r.bounds(), o)
	for _, other := range others {
		r.requests.AddKey(other)
	}
	return nil
}

// holder returns why the OvnFip of another pod excludes a rule with an OvnEip, which does not exist yet if it is nil; "" if none does. Of pods that request the OvnEip of
// an OvnFip, one can have it. The others get no rules: each change of one would be compared with all.
func (r *podRules) holder(ctx context.Context, owner types.NamespacedName, eip string, rule client.Object) (string, error) {
	fips, err := r.Networks.NATRulesOfKind(ctx, translate.KindOvnFip, "eip/"+eip)
	if err != nil {
		return "", err
	}
	for _, fip := range fips {
		if of := ownersOf(fip.Object); len(of) > 0 && of[0] != owner.String() && (rule == nil || precedes(fip, lookup.NATRuleOf(rule))) {
			return fmt.Sprintf("OvnFip %s has the addresses of OvnEip %s: request other addresses, or remove the annotation", fip.GetName(), eip), nil
		}
	}
	return "", nil
}

// precedes reports whether a rule stays if only one of two rules of pods can be applied.
func precedes(a, b *lookup.NATRule) bool {
	if *a.Status.Ready != *b.Status.Ready {
		return *a.Status.Ready
	}
	return cmp.Or(a.GetCreationTimestamp().Compare(b.GetCreationTimestamp().Time), cmp.Compare(a.GetName(), b.GetName())) < 0
}

// waitingFor returns the owners whose pods request the addresses of an OvnFip.
func (r *podRules) waitingFor(ctx context.Context, o client.Object) []reconcile.Request {
	var requests []reconcile.Request
	for _, name := range lookup.NATRuleOf(o).Eips() {
		eip, err := k8s.Find[kubeovnv1.OvnEip](ctx, r.Client, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
		if err != nil {
			return nil // the cache is stopping
		}
		if eip != nil {
			requests = append(requests, r.askingFor(ctx, eip)...)
		}
	}
	return requests
}

// count records the requests of all pods, once, before the first verdict: until the older pods of a namespace are recorded, younger ones would get their rules. It enqueues the
// pods that EgressAddresses select.
func (r *podRules) count(ctx context.Context) error {
	if r.counted {
		return nil
	}
	var pods corev1.PodList
	if err := r.Client.List(ctx, &pods, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	for i := range pods.Items {
		if r.viewRequests(&pods.Items[i]) == "" {
			continue
		}
		owner := ownerOf(&pods.Items[i])
		if r.selecting(&pods.Items[i]).Eip != "" {
			r.requests.AddKey(owner) // the index was filled without notifications
		}
		pod, err := r.podAt(ctx, owner)
		if err != nil {
			return err
		}
		if err := r.spend(ctx, owner, pod); err != nil {
			return err
		}
	}
	r.counted = true
	return nil
}

// beyond returns why the rules of an owner exceed the bound of its namespace; "" if they do not.
func (r *podRules) beyond(owner types.NamespacedName) string {
	if r.spent.Verdict(r.bounds(), owner) == budget.Within {
		return ""
	}
	return fmt.Sprintf("the pods of namespace %s request more than %d rules, and older pods have theirs: remove annotations eip and snat of pods that need none, or let an "+
		"administrator create one OvnSnatRule for the subnet", owner.Namespace, r.bounds().Group)
}
