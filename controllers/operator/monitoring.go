// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/controllers/operator/status"
	"github.com/kiln-net/kiln/internal/workload"
)

// monitoringKinds are the optional kinds of the Prometheus operator, with the names of their definitions and their objects.
var monitoringKinds = []struct {
	kind       schema.GroupVersionKind
	definition string
	objects    func(render.Config) []render.Object
}{
	{render.ServiceMonitorKind, "servicemonitors." + render.PrometheusGroup, render.ServiceMonitors},
	{render.PrometheusRuleKind, "prometheusrules." + render.PrometheusGroup, render.PrometheusRules},
}

// isMonitoring selects the definitions of these kinds.
func isMonitoring(definition string) bool {
	for _, k := range monitoringKinds {
		if k.definition == definition {
			return true
		}
	}
	return false
}

// runMonitoring applies kube-ovn-monitor, and the objects with which Prometheus finds the metrics. No phase waits for it.
func (r *Reconciler) runMonitoring(ctx context.Context, p *pass) error {
	// The operator's own image (Operand.OperatorImage): a change of spec.image does not replace it.
	config := p.config
	config.Image = r.Image
	if err := p.tolerate(ctx, "Service", p.objects.Apply(ctx, append(render.MonitorObjects(config), render.MetricsServices(config)...)...)); err != nil {
		return err
	}
	for _, k := range monitoringKinds {
		if err := p.tolerate(ctx, k.kind.Kind, r.applyMonitoring(ctx, p, k.kind, k.definition, k.objects(config))); err != nil {
			return err
		}
	}
	return nil
}

// tolerate returns err, or nil if it is lasting: the roles or the definition of the kind are of another version. The network does not need
// these objects.
func (p *pass) tolerate(ctx context.Context, kind string, err error) error {
	if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
		return err
	}
	logr.FromContextOrDiscard(ctx).Info("cannot apply objects of monitoring: apply the manifests of this version", "kind", kind, "reason", err.Error())
	if render.HasMonitor(&p.config.Spec) {
		p.Note(render.MonitorName, status.Note{Aside: true, Text: fmt.Sprintf("apply the manifests of this version: %s", err)})
	}
	p.WakeAfter(policyRetry)
	return nil
}

// applyMonitoring applies the objects of a kind if the API server has it, and deletes those that the spec no longer requests.
func (r *Reconciler) applyMonitoring(ctx context.Context, p *pass, kind schema.GroupVersionKind, definitionName string, objects []render.Object) error {
	defined, err := r.kinds.defined(ctx, definitionName)
	if err != nil {
		return err
	}
	if !defined {
		return r.kinds.unwatch(ctx, kind)
	}
	if err := r.kinds.watchServed(ctx, kind); err != nil {
		return err
	}
	if err := p.objects.Apply(ctx, objects...); err != nil {
		return err
	}
	return p.objects.Prune(ctx, workload.Untyped(kind), client.InNamespace(r.Namespace), client.MatchingLabels{render.ManagedByLabel: render.ManagedBy})
}
