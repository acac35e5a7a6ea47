// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
)

// reasonMirror is the reason of the event on a mirror pod whose requests are ignored (kubeovnv1.IsMirror).
const reasonMirror = "StaticPodRequestsIgnored"

// mirrorName returns the problem of a mirror pod with the name of an absent pod: the addresses of that pod stay retained.
func mirrorName() *problem {
	return &problem{message: "addresses are retained for another pod of this name, and a static pod does not get them: rename the static pod"}
}

// warnOfMirror reports on a new mirror pod which of its requests are ignored.
func (r *Reconciler) warnOfMirror(ctx context.Context, pod *corev1.Pod) {
	if !kubeovnv1.IsMirror(pod.Annotations) {
		return
	}
	var ignored []string
	for _, a := range kubeovnv1.AnnotationsOf(kubeovnv1.OnPod, kubeovnv1.RoleRequest, kubeovnv1.RoleClaim) {
		if pod.Annotations[a.Key()] != "" {
			ignored = append(ignored, "annotation "+a.Key())
		}
	}
	ns := &corev1.Namespace{}
	if err := r.Client.Get(ctx, client.ObjectKey{Name: pod.Namespace}, ns, client.UnsafeDisableDeepCopy); err == nil {
		if subnets, err := r.Namespaces.Subnets(ctx, ns); err == nil && !slices.Contains(subnets, kubeovnv1.DefaultSubnet) {
			ignored = append(ignored, "the subnets of its namespace")
		}
	}
	if len(ignored) > 0 {
		k8s.Warn(r.Recorder, pod, reasonMirror, "a node created this pod, so it gets an address of subnet "+kubeovnv1.DefaultSubnet+" and is no peer of policies. Ignored: "+
			strings.Join(ignored, ", ")+". Use a DaemonSet instead of a static pod")
	}
}
