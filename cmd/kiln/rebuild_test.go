// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/podlabel"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/must"
)

// content returns the rows that the controller owns. NB_Global is excluded, because its values depend on the database and the leader.
func content(server *nbtest.Server) map[string]map[string]nbtest.Row {
	all := server.Dump()
	delete(all, nb.NBGlobalTable)
	return nbtest.WithoutIncarnations(all)
}

// settled returns the database's content after it was unchanged for a while: no event reports that the last controller is done.
func settled(t *testing.T, server *nbtest.Server) (last map[string]map[string]nbtest.Row) {
	t.Helper()
	since := time.Now()
	eventually.Until(t, func() string {
		if now := content(server); !cmp.Equal(last, now) {
			last, since = now, time.Now()
		}
		if time.Since(since) < 3*time.Second {
			return "the database still changes"
		}
		return ""
	})
	return last
}

// TestTheDatabaseIsRebuiltFromTheAPI replaces the northbound database by an empty one while a controller runs. This controller ends. The
// next one writes the same content, row for row, and reports when that is complete.
func TestTheDatabaseIsRebuiltFromTheAPI(t *testing.T) {
	c := useAPIServer(t)
	certificates := newCertificates(t)
	database := nbtest.Start(t)
	stop := listen(t, certificates, 8, database)
	cluster := &v1alpha1.OVNCluster{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.OVNClusterName}}
	must.Succeed(t, c.Create(t.Context(), cluster))
	cluster.Status.Northbound.ClusterID = "one"
	moveTo(t, c, cluster, 8)
	self := newPod("controller")
	self.Spec.HostNetwork = true
	must.Succeed(t, c.Create(t.Context(), self))
	controller := startController(t, certificates, "controller", os.Getenv("KUBECONFIG"), healthAt(13), long...)
	written := func(id string) func() string {
		return func() string {
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(self), self); err != nil {
				return err.Error()
			}
			if got := self.Labels[podlabel.NorthboundWritten]; got != id {
				return fmt.Sprintf("the label is %q, not %q", got, id)
			}
			return ""
		}
	}
	populate(t, c)
	eventually.Until(t, func() string { return allocated(c, "p9", "10.16.0.11") })
	eventually.Until(t, written("one"))
	before := settled(t, database)
	if len(before[nb.ACLTable]) == 0 || len(before[nb.LoadBalancerTable]) == 0 || len(before[nb.LogicalSwitchPortTable]) < 10 {
		t.Fatalf("the database holds too little to compare: %v", before)
	}

	stop()
	fresh := nbtest.Start(t)
	listen(t, certificates, 8, fresh)
	cluster.Status.Northbound.ClusterID = "" // while the database is recreated
	cluster.Status.Northbound.Recovery = &v1alpha1.RecoveryStatus{ID: "r", Phase: v1alpha1.RecoveryCreating}
	must.Succeed(t, c.Status().Update(t.Context(), cluster))
	cluster.Status.Northbound.ClusterID, cluster.Status.Northbound.Recovery.Phase = "two", v1alpha1.RecoveryFilling
	must.Succeed(t, c.Status().Update(t.Context(), cluster))
	if err := controller.Wait(); err == nil {
		t.Error("the controller ended as if all was well")
	}
	startController(t, certificates, "controller", os.Getenv("KUBECONFIG"), healthAt(13), long...)
	eventually.Until(t, written("two"))
	if diff := cmp.Diff(before, content(fresh)); diff != "" {
		t.Errorf("the database differs from the earlier one (-), it is now (+):\n%s", diff)
	}
}

// populate creates a few objects of every kind.
func populate(t *testing.T, c client.Client) {
	t.Helper()
	must.Succeed(t, c.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}))
	must.Succeed(t, c.Create(t.Context(), &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "v"}}))
	port := int32(80)
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: port}}},
	}
	must.Succeed(t, c.Create(t.Context(), service))
	http, ready := "http", true
	must.Succeed(t, c.Create(t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "s", Labels: map[string]string{discoveryv1.LabelServiceName: "s"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.16.0.2"}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
		Ports:       []discoveryv1.EndpointPort{{Name: &http, Port: &port}},
	}))
	must.Succeed(t, c.Create(t.Context(), &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"},
		Spec: networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{
			From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}}},
		}}},
	}))
	for i := range 10 {
		pod := newPod(fmt.Sprintf("p%d", i))
		pod.Labels = map[string]string{"a": "b"}
		must.Succeed(t, c.Create(t.Context(), pod))
		eventually.Until(t, func() string { return allocated(c, pod.Name, fmt.Sprintf("10.16.0.%d", i+2)) })
	}
}
