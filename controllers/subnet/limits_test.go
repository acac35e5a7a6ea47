// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet_test

import (
	"fmt"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/cache"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/subnet"
	"github.com/kiln-net/kiln/internal/limits"
)

// TestTheStatusHasTheLimitsOfPods of the subnet, and of the OVNCluster for a direction without a rate.
func TestTheStatusHasTheLimitsOfPods(t *testing.T) {
	n := start(t)
	var settings limits.Cluster
	set := func(l *kubeovnv1.PodLimits) {
		spec := &v1alpha1.OVNClusterSpec{}
		spec.Tenancy.PodLimits = l
		settings.Set(spec)
	}
	set(&kubeovnv1.PodLimits{IngressRate: "10M", IngressBurst: "20M"})
	n.runWith(cache.Options{}, func(r *subnet.Reconciler) { r.Limits = &settings })
	has := func(name string, want kubeovnv1.PodLimits) {
		n.Helper()
		n.Eventually(func() string {
			var got kubeovnv1.PodLimits
			if s := n.subnet(name); s.Status.PodLimits != nil {
				got = *s.Status.PodLimits
			}
			if got != want {
				return fmt.Sprintf("%s has %+v, want %+v", name, got, want)
			}
			return ""
		})
	}
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/24", PodLimits: &kubeovnv1.PodLimits{EgressRate: "1M"}}}
	n.Create(s)
	has("shop", kubeovnv1.PodLimits{IngressRate: "10M", IngressBurst: "20M", EgressRate: "1M"})
	has("ovn-default", kubeovnv1.PodLimits{IngressRate: "10M", IngressBurst: "20M"})
	has("join", kubeovnv1.PodLimits{})
	set(&kubeovnv1.PodLimits{EgressRate: "2M"})
	has("shop", kubeovnv1.PodLimits{EgressRate: "1M"})
	has("ovn-default", kubeovnv1.PodLimits{EgressRate: "2M"})
	gateway := n.subnet("shop").Spec.Gateway
	n.Change(s, func() { s.Spec.PodLimits, s.Spec.Gateway = &kubeovnv1.PodLimits{EgressRate: "3M"}, "10.21.0.1" })
	n.Says(s, kubeovnv1.ConditionValidated, metav1.ConditionFalse)
	set(nil)
	has("shop", kubeovnv1.PodLimits{EgressRate: "1M"}) // the last valid spec
	has("ovn-default", kubeovnv1.PodLimits{})
	n.Change(s, func() { s.Spec.PodLimits, s.Spec.Gateway = nil, gateway })
	has("shop", kubeovnv1.PodLimits{})
}
