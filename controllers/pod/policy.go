// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/grants"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/podset"
	"github.com/kiln-net/kiln/internal/reconciler"
)

// reasonNoGroup is the reason of the event on a pod that names a security group which does not exist.
const reasonNoGroup = "SecurityGroupNotFound"

// reasonDeniedGroup is the reason of the event on a pod that names a security group which does not list its namespace.
const reasonDeniedGroup = "SecurityGroupNotGranted"

// indexGroups finds pods by the security groups that they name.
const indexGroups = "pod.groups"

// reasonTooManyGroups is the reason of the event on a pod that names too many security groups.
const reasonTooManyGroups = "TooManySecurityGroups"

var keyGroups = kubeovnv1.AnnotationGroups.Key()

// joinSets adds the pod to the index of pod sets, and returns its membership and the revision of this. The pod enters the index before
// its port is committed, so that a new pod is never connected without the policies that select it.
func (r *Reconciler) joinSets(pod *corev1.Pod, groups *grants.Groups) (in translate.PodPolicy, revision int) {
	p := podset.Of(pod, groups.Sets())
	r.Sets.SetPod(p)
	m := r.Sets.Membership(p.NamespacedName)
	if m.Grouped {
		in.Grouped = append(in.Grouped, translate.TierBaseline)
	}
	if m.First {
		in.Grouped = append(in.Grouped, translate.TierPolicy)
	}
	for _, part := range m.Parts {
		if part.Role == podset.Subjects {
			in.Subjects = append(in.Subjects, part.Name())
		} else {
			in.Peers = append(in.Peers, translate.PodSetPart{Name: part.Name(), Number: part.Number})
		}
	}
	return in, m.Revision
}

// warnOfGroups warns once about security groups of a pod that it is not in, or about too many of them. They let nothing through.
func (r *Reconciler) warnOfGroups(pod *corev1.Pod, groups *grants.Groups) {
	reason, said := "", ""
	switch {
	case kubeovnv1.TooLong(pod.Annotations[keyGroups]):
		reason, said = reasonTooManyGroups, fmt.Sprintf("annotation %s names more than %d groups: nothing passes. Name fewer", keyGroups, kubeovnv1.MaxListEntries)
	case len(groups.Denied) > 0:
		reason, said = reasonDeniedGroup, fmt.Sprintf("annotation %s names %s, which does not list namespace %s: nothing passes by it. Add the namespace to allowedNamespaces of the SecurityGroup",
			keyGroups, strings.Join(groups.Denied, ", "), pod.Namespace)
	case len(groups.Missing) > 0:
		reason, said = reasonNoGroup, fmt.Sprintf("annotation %s names %s, which does not exist: nothing passes by it. Create the SecurityGroup, or name another one", keyGroups, strings.Join(groups.Missing, ", "))
	}
	if r.missing.New(pod.UID, said) {
		k8s.Warn(r.Recorder, pod, reason, said)
	}
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

// leaveSets removes a pod without a port from the index. It skips existing host-network pods, see indexLabels.
func (r *Reconciler) leaveSets(key types.NamespacedName, pod *corev1.Pod) {
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
		r.Sets.DeletePod(client.ObjectKeyFromObject(after), after.UID)
	case host || before != nil && r.owns(after) && podset.Counts(after) &&
		(!maps.Equal(before.Labels, after.Labels) || before.Annotations[keyGroups] != after.Annotations[keyGroups]):
		groups, err := r.Grants.Groups(ctx, r.podWrites.newest(after))
		if err != nil {
			return // the cache is stopping
		}
		r.Sets.SetPod(podset.Of(after, groups.Sets()))
	}
}

// setsChanged enqueues the pods whose membership changed. It never blocks.
func (r *Reconciler) setsChanged(c podset.Changes) {
	for _, key := range c.Pods {
		r.pending.AddKey(key)
	}
}
