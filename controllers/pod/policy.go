// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/podset"
)

// reasonNoGroup is the reason of the event on a pod that names a security group which does not exist.
const reasonNoGroup = "SecurityGroupNotFound"

// reasonTooManyGroups is the reason of the event on a pod that names too many security groups.
const reasonTooManyGroups = "TooManySecurityGroups"

var keyGroups = kubeovnv1.AnnotationGroups.Key()

// joinSets adds the pod to the index of pod sets, and returns its membership and the revision of this. The pod enters the index before
// its port is committed, so that a new pod is never connected without the policies that select it.
func (r *Reconciler) joinSets(pod *corev1.Pod) (in translate.PodPolicy, revision int) {
	p := podset.Of(pod)
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

// warnOfGroups warns once about security groups of a pod that do not exist, or about too many of them. They let nothing through.
func (r *Reconciler) warnOfGroups(ctx context.Context, pod *corev1.Pod) {
	reason, said := reasonNoGroup, ""
	if kubeovnv1.TooLong(pod.Annotations[keyGroups]) {
		reason, said = reasonTooManyGroups, fmt.Sprintf("annotation %s names more than %d groups: nothing passes. Name fewer", keyGroups, kubeovnv1.MaxListEntries)
	} else if missing := r.missingGroups(ctx, pod); len(missing) > 0 {
		said = fmt.Sprintf("annotation %s names %s, which does not exist: nothing passes by it", keyGroups, strings.Join(missing, ", "))
	}
	if r.missing.New(pod.UID, said) {
		k8s.Warn(r.Recorder, pod, reason, said)
	}
}

// missingGroups returns the names of a pod's security groups that do not exist.
func (r *Reconciler) missingGroups(ctx context.Context, pod *corev1.Pod) []string {
	var missing []string
	for _, name := range kubeovnv1.ParseSecurityGroups(pod.Annotations) {
		err := r.Client.Get(ctx, client.ObjectKey{Name: name}, &kubeovnv1.SecurityGroup{}, client.UnsafeDisableDeepCopy)
		if apierrors.IsNotFound(err) && name != kubeovnv1.DenyAllGroup {
			missing = append(missing, name)
		}
	}
	return missing
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
func (r *Reconciler) indexLabels(before, after *corev1.Pod) {
	host := after.Spec.HostNetwork
	switch {
	case host && !podset.Counts(after):
		p := podset.Of(after)
		r.Sets.DeletePod(p.NamespacedName, p.UID)
	case host || before != nil && r.owns(after) && podset.Counts(after) &&
		(!maps.Equal(before.Labels, after.Labels) || before.Annotations[keyGroups] != after.Annotations[keyGroups]):
		r.Sets.SetPod(podset.Of(after))
	}
}

// setsChanged enqueues the pods whose membership changed. It never blocks.
func (r *Reconciler) setsChanged(c podset.Changes) {
	for _, key := range c.Pods {
		r.pending.AddKey(key)
	}
}
