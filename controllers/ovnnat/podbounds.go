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

	"github.com/kiln-net/kiln/internal/serving/budget"
)

// maxPodRules is the number of rules that annotations of the pods of a namespace can request. Each rule has rows in both databases and flows on nodes, and no quota of the
// namespace counts it.
const maxPodRules = 1000

func (r *podRules) bounds() budget.Bounds {
	return budget.Bounds{Group: cmp.Or(r.MaxPodRules, maxPodRules)}
}

// spend records how many rules the pod at a port requests. It enqueues the other owners of the namespace whose verdicts have changed.
func (r *podRules) spend(owner types.NamespacedName, pod *corev1.Pod) {
	o := budget.Object{Key: owner, Group: owner.Namespace}
	for _, request := range podRequests {
		if len(requested(pod, request.annotation)) > 0 {
			o.Cost, o.Created = o.Cost+1, pod.CreationTimestamp.Time
		}
	}
	_, others := r.spent.Set(r.bounds(), o)
	for _, other := range others {
		r.requests.AddKey(other)
	}
}

// count records the requests of all pods, once, before the first verdict: until the older pods of a namespace are recorded, younger ones would get their rules.
func (r *podRules) count(ctx context.Context) error {
	if r.counted {
		return nil
	}
	var pods corev1.PodList
	if err := r.Client.List(ctx, &pods, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	for i := range pods.Items {
		if viewRequests(&pods.Items[i]) == "" {
			continue
		}
		owner := ownerOf(&pods.Items[i])
		pod, err := r.podAt(ctx, owner)
		if err != nil {
			return err
		}
		r.spend(owner, pod)
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
