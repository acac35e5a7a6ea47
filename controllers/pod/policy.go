// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/podset"
	"github.com/kiln-net/kiln/internal/reconciler"
)

// indexGroups finds pods by the security groups that they name.
const indexGroups = "pod.groups"

var keyGroups = kubeovnv1.AnnotationGroups.Key()

// rows returns the rows of a port. It adds the pod to the index of pod sets, of whose membership it returns the revision. The pod enters the index before
// its port is committed, so that a new pod is never connected without the policies that select it.
func (r *Reconciler) rows(c *connection) (rows []desired.Row, revision int) {
	p := podset.Of(c.pod, c.port.Provider, c.groups.Sets())
	p.Vpc = lookup.VpcOf(c.subnet)
	r.Sets.SetPod(p)
	m := r.Sets.Membership(p.Key)
	var policy translate.PodPolicy
	if m.Grouped {
		policy.Grouped = append(policy.Grouped, translate.TierBaseline)
	}
	if m.First {
		policy.Grouped = append(policy.Grouped, translate.TierPolicy)
	}
	for _, part := range m.Parts {
		switch {
		case part.Role == podset.Subjects:
			policy.Subjects = append(policy.Subjects, part.Name())
		case part.HasRows():
			policy.Peers = append(policy.Peers, translate.PodSetPart{Name: part.Name(), Number: part.Number})
		}
	}
	return translate.Pod(c.inputs(policy)), m.Revision
}

// groupsOf returns the groups of a pod for an index by indexGroups.
func groupsOf(o client.Object) []string { return kubeovnv1.ParseSecurityGroups(o.GetAnnotations()) }

// onGroup enqueues the pods that name a security group when it is created, or lists other namespaces.
func (r *Reconciler) onGroup() handler.EventHandler {
	enqueue := func(ctx context.Context, group client.Object, q k8s.Queue) {
		var pods corev1.PodList
		if err := r.Client.List(ctx, &pods, client.MatchingFields{indexGroups: group.GetName()}, client.UnsafeDisableDeepCopy); err != nil {
			return // the cache is stopping
		}
		for i := range pods.Items {
			reconciler.AddWith(q, handler.LowPriority, requestFor(&pods.Items[i]))
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q k8s.Queue) {
			if !e.IsInInitialList { // the pods are enqueued at the start anyway
				enqueue(ctx, e.Object, q)
			}
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q k8s.Queue) {
			before, after := e.ObjectOld.(*kubeovnv1.SecurityGroup), e.ObjectNew.(*kubeovnv1.SecurityGroup)
			if !slices.Equal(before.Spec.AllowedNamespaces, after.Spec.AllowedNamespaces) {
				enqueue(ctx, after, q)
			}
		},
	}
}

// leaveSets removes the port of a pod, which no longer has it, from the index. It skips existing host-network pods, see indexLabels.
func (r *Reconciler) leaveSets(key podset.Key, pod *corev1.Pod) {
	if pod == nil {
		r.Sets.DeletePod(key, "")
	} else if !pod.Spec.HostNetwork {
		r.Sets.DeletePod(key, pod.UID)
	}
}

// indexLabels updates the index if a pod's labels or groups changed; before is nil for a new pod. The index reports pods to requeue
// through setsChanged. A new pod on the pod network enters the index in joinSets, with its port.
func (r *Reconciler) indexLabels(ctx context.Context, before, after *corev1.Pod) {
	host := after.Spec.HostNetwork
	switch {
	case host && !podset.Counts(after):
		r.Sets.DeletePod(podset.KeyOf(after, kubeovnv1.ProviderOVN), after.UID)
	case host || before != nil && r.owns(r.subject(after)) && podset.Counts(after) &&
		(!maps.Equal(before.Labels, after.Labels) || before.Annotations[keyGroups] != after.Annotations[keyGroups]):
		newest := r.podWrites.newest(after)
		groups, err := r.Grants.Groups(ctx, newest.Namespace, kubeovnv1.ParseSecurityGroups(newest.Annotations), kubeovnv1.KeptSecurityGroups(newest))
		if err != nil {
			return // the cache is stopping
		}
		r.Sets.SetPod(podset.Of(newest, kubeovnv1.ProviderOVN, groups.Sets()))
	}
}

// setsChanged enqueues the pods whose ports have another membership. It never blocks.
func (r *Reconciler) setsChanged(c podset.Changes) {
	for _, port := range c.Ports {
		r.pending.AddKey(port.NamespacedName)
	}
}
