// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"path/filepath"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/workload"
)

// TestPrometheusFindsTheMetrics has the kinds of the Prometheus operator come, change and go.
func TestPrometheusFindsTheMetrics(t *testing.T) {
	s := newInstallation(t)
	g := newG(t)
	for _, name := range []string{"kiln-operator", "kube-ovn-controller", "kube-ovn-cni", "ovs-ovn", "kube-ovn-monitor"} {
		service := &corev1.Service{}
		g.Eventually(s.exists(t, service, name)).Should(Succeed(), name)
		g.Expect(service.Spec.Ports[0].Name).To(Equal("metrics"))
	}
	names := func(kind schema.GroupVersionKind, labels ...client.ListOption) func() []string {
		return func() []string {
			var list unstructured.UnstructuredList
			list.SetGroupVersionKind(kind)
			found := []string{}
			if err := s.admin.List(t.Context(), &list, append(labels, client.InNamespace(testNamespace))...); err != nil {
				return []string{err.Error()}
			}
			for _, o := range list.Items {
				found = append(found, o.GetName())
			}
			slices.Sort(found)
			return found
		}
	}
	all := []string{"kiln-operator", "kube-ovn-cni", "kube-ovn-controller", "kube-ovn-monitor", "ovs-ovn"}

	g.Expect(s.createFile(t.Context(), filepath.Join("testdata", "prometheus-operator.yaml"))).To(Succeed())
	remove := func(ctx context.Context) error {
		for _, k := range monitoringKinds {
			d := workload.Untyped(definition("").GroupVersionKind())
			d.SetName(k.definition)
			if err := s.admin.Delete(ctx, d); client.IgnoreNotFound(err) != nil {
				return err
			}
		}
		return nil
	}
	t.Cleanup(func() {
		if err := remove(context.Background()); err != nil {
			t.Error(err)
		}
	})
	g.Eventually(names(render.ServiceMonitorKind)).Should(Equal(all))
	g.Eventually(names(render.PrometheusRuleKind)).Should(Equal([]string{render.RulesName}))

	s.changeSpec(t, func(spec *v1alpha1.OVNClusterSpec) {
		spec.Monitoring.Labels = map[string]v1alpha1.LabelValue{"release": "prometheus"}
	})
	g.Eventually(names(render.ServiceMonitorKind, client.MatchingLabels{"release": "prometheus"})).Should(Equal(all))

	monitor := workload.Untyped(render.ServiceMonitorKind)
	monitor.SetNamespace(testNamespace)
	monitor.SetName("ovs-ovn")
	g.Expect(s.admin.Delete(t.Context(), monitor)).To(Succeed())
	g.Eventually(names(render.ServiceMonitorKind)).Should(Equal(all), "after somebody has deleted one")

	s.changeSpec(t, func(spec *v1alpha1.OVNClusterSpec) {
		spec.Monitoring.Monitor, spec.Monitoring.Rules = v1alpha1.MonitoringDisabled, v1alpha1.MonitoringDisabled
	})
	g.Eventually(names(render.ServiceMonitorKind)).Should(Equal([]string{"kiln-operator", "kube-ovn-cni", "kube-ovn-controller", "ovs-ovn"}))
	g.Eventually(names(render.PrometheusRuleKind)).Should(BeEmpty())
	g.Eventually(func() bool { return apierrors.IsNotFound(s.exists(t, &appsv1.Deployment{}, render.MonitorName)()) }).Should(BeTrue())
	g.Eventually(func() bool { return apierrors.IsNotFound(s.exists(t, &corev1.Service{}, render.MonitorName)()) }).Should(BeTrue())
	g.Eventually(func() bool { return apierrors.IsNotFound(s.exists(t, &corev1.Secret{}, render.MonitorSecret)()) }).Should(BeTrue())

	g.Expect(remove(t.Context())).To(Succeed())
	s.changeSpec(t, func(spec *v1alpha1.OVNClusterSpec) { spec.Monitoring.Access = v1alpha1.MetricsAuthorized })
	service := &corev1.Service{}
	g.Eventually(func() int32 {
		if s.exists(t, service, "ovs-ovn")() != nil {
			return 0
		}
		return service.Spec.Ports[0].Port
	}).Should(Equal(int32(10872)))
	g.Eventually(s.condition(t, "Degraded")).Should(HavePrefix("False"))
}
