// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/version"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/status"
)

// minimumKubernetes is the oldest version of Kubernetes that Kiln supports. The rules of the resource definitions call CEL's functions for
// addresses. They exist since 1.30, and an API server accepts in new objects only functions that its previous version has.
var minimumKubernetes = version.MajorMinor(1, 31)

// untilServed is how long the controller waits until the API server serves OVNCluster: for ever. With a limit the operator would restart
// again and again on an API server that refuses the definition.
const untilServed = math.MaxInt64

// oldKubernetes returns the problem with a version of the API server such as v1.30.4+k3s1, or nothing if Kiln supports it.
func oldKubernetes(given string) string {
	v, err := version.ParseGeneric(given)
	if err != nil || v.AtLeast(minimumKubernetes) {
		return ""
	}
	return fmt.Sprintf("Kubernetes %s is too old: upgrade the API servers to %s or newer. Older ones refuse the current resource definitions, and before 1.30 "+
		"they have no admission policies (docs/operations/install.md)", given, minimumKubernetes)
}

// checkKubernetes notes that the API server is too old. The pass continues, because an existing network needs its components all the
// same. The version is requested until it is new enough; no watch reports a new one.
func (r *Reconciler) checkKubernetes(ctx context.Context, p *pass) {
	if r.newKubernetes {
		return
	}
	info, err := r.Server.ServerVersionWithContext(ctx)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "cannot get the version of the API server")
		return
	}
	p.OldKubernetes = oldKubernetes(info.GitVersion)
	if r.newKubernetes = p.OldKubernetes == ""; !r.newKubernetes {
		p.WakeAfter(policyRetry)
	}
}

// reportStart logs why the operator can only wait, and creates an event of its pod: the API server does not serve OVNCluster, so that no
// OVNCluster can have a condition. An API server that is too old refuses the definition.
func (r *Reconciler) reportStart(ctx context.Context) error {
	_, err := r.RESTMapper().RESTMapping(v1alpha1.GroupVersion.WithKind("OVNCluster").GroupKind(), v1alpha1.GroupVersion.Version)
	if !meta.IsNoMatchError(err) {
		return nil
	}
	reason, message := reasonNoDefinition, "waiting for the definition of OVNCluster: apply the manifests in config/crd"
	if info, err := r.Server.ServerVersionWithContext(ctx); err == nil {
		if old := oldKubernetes(info.GitVersion); old != "" {
			reason, message = status.ReasonOldKubernetes, old
		}
	}
	ctrl.LoggerFrom(ctx).Info("the API server does not serve OVNCluster", "reason", reason, "message", message)
	var pod corev1.Pod
	if err := r.APIReader.Get(ctx, types.NamespacedName{Namespace: r.Namespace, Name: r.Pod}, &pod); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "cannot get the operator's pod for an event")
		return nil
	}
	r.Recorder.Eventf(&pod, nil, corev1.EventTypeWarning, reason, "Start", "%s", message)
	return nil
}
