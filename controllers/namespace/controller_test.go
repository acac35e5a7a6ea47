// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package namespace_test

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/controllers/namespace"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

var steps = controllertest.Steps{Setup: func(ctx context.Context, p *controllertest.Process) error {
	r := &namespace.Reconciler{Client: p.Client, Namespaces: p.Namespaces, Pools: p.Pools, Gate: p.Gate}
	return p.Run(ctx, r)
}}

func newNamespace(w *controllertest.World, name string, labels map[string]string) *corev1.Namespace {
	w.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := w.Client.Create(w.Context(), ns); err != nil && !apierrors.IsAlreadyExists(err) {
		w.Fatal(err)
	}
	w.Get(ns)
	w.Change(ns, func() { ns.Labels = labels })
	return ns
}

func newSubnet(w *controllertest.World, name, cidr string, change func(*kubeovnv1.SubnetSpec)) *kubeovnv1.Subnet {
	w.Helper()
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: cidr}}
	if change != nil {
		change(&s.Spec)
	}
	w.Create(s)
	return s
}

// hasAnnotations waits until a namespace has exactly these annotations; an empty value means that the annotation is absent.
func hasAnnotations(w *controllertest.World, ns *corev1.Namespace, switches, cidrs, excluded string) {
	w.Helper()
	want := map[string]string{}
	for key, value := range map[string]string{"logical_switch": switches, "cidr": cidrs, "exclude_ips": excluded} {
		if value != "" {
			want["ovn.kubernetes.io/"+key] = value
		}
	}
	w.Eventually(func() string {
		w.Get(ns)
		if !maps.Equal(ns.Annotations, want) {
			return fmt.Sprintf("namespace %s has %v, want %v", ns.Name, ns.Annotations, want)
		}
		return ""
	})
}

func TestNamespacesAreAnnotatedWithTheirSubnets(t *testing.T) {
	w := controllertest.New(t)
	w.Start(steps)
	shop := newNamespace(w, "shop", map[string]string{"team": "sales"})
	lab := newNamespace(w, "lab", nil)
	hasAnnotations(w, shop, "", "", "")

	main := newSubnet(w, "ovn-default", "10.16.0.0/16,fd00:10:16::/112", func(s *kubeovnv1.SubnetSpec) {
		s.ExcludeIPs = []string{"10.16.0.1", "fd00:10:16::1"}
	})
	hasAnnotations(w, shop, "ovn-default", "10.16.0.0/16,fd00:10:16::/112", "10.16.0.1,fd00:10:16::1")
	hasAnnotations(w, lab, "ovn-default", "10.16.0.0/16,fd00:10:16::/112", "10.16.0.1,fd00:10:16::1")

	named := newSubnet(w, "named", "10.17.0.0/24", func(s *kubeovnv1.SubnetSpec) {
		s.Namespaces = []string{"shop"}
		s.ExcludeIPs = []string{"10.17.0.1", "10.17.0.10..10.17.0.20"}
	})
	hasAnnotations(w, shop, "named", "10.17.0.0/24", "10.17.0.1,10.17.0.10..10.17.0.20")

	vpc := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "ovn-cluster"}, Spec: kubeovnv1.VpcSpec{DefaultSubnet: "selecting"}}
	w.Create(vpc)
	newSubnet(w, "selecting", "10.18.0.0/24", func(s *kubeovnv1.SubnetSpec) {
		s.NamespaceSelectors = []metav1.LabelSelector{{MatchLabels: map[string]string{"team": "sales"}}}
		s.ExcludeIPs = []string{"10.18.0.1"}
	})
	hasAnnotations(w, shop, "selecting,named", "10.18.0.0/24;10.17.0.0/24", "10.18.0.1;10.17.0.1,10.17.0.10..10.17.0.20")

	w.Change(shop, func() { shop.Labels = map[string]string{"team": "other"} })
	hasAnnotations(w, shop, "named", "10.17.0.0/24", "10.17.0.1,10.17.0.10..10.17.0.20")
	w.Change(named, func() { named.Spec.ExcludeIPs = []string{"10.17.0.1"} })
	hasAnnotations(w, shop, "named", "10.17.0.0/24", "10.17.0.1")
	w.Change(shop, func() { shop.Annotations["ovn.kubernetes.io/logical_switch"] = "mistake" })
	hasAnnotations(w, shop, "named", "10.17.0.0/24", "10.17.0.1")

	// Only VPCs change, so that no event of a subnet or namespace wakes the controller.
	tenant := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "tenant"}, Spec: kubeovnv1.VpcSpec{Namespaces: []string{"lab"}, DefaultSubnet: "named"}}
	w.Create(tenant)
	hasAnnotations(w, lab, "named", "10.17.0.0/24", "10.17.0.1")
	w.Change(tenant, func() { tenant.Spec.DefaultSubnet = "selecting" })
	hasAnnotations(w, lab, "selecting", "10.18.0.0/24", "10.18.0.1")
	w.Delete(tenant, vpc)
	hasAnnotations(w, lab, "ovn-default", main.Spec.CIDRBlock, "10.16.0.1,fd00:10:16::1")
	w.Delete(named)
	hasAnnotations(w, shop, "ovn-default", main.Spec.CIDRBlock, "10.16.0.1,fd00:10:16::1")
	hasAnnotations(w, lab, "ovn-default", main.Spec.CIDRBlock, "10.16.0.1,fd00:10:16::1")
}

func TestNamespacesAreAnnotatedWithTheirPools(t *testing.T) {
	w := controllertest.New(t)
	w.Start(steps)
	shop, lab := newNamespace(w, "shop", nil), newNamespace(w, "lab", nil)
	newPool := func(name string, namespaces ...string) *kubeovnv1.IPPool {
		pool := &kubeovnv1.IPPool{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.IPPoolSpec{Subnet: "none", IPs: []string{"10.17.0.9"}, Namespaces: namespaces},
		}
		w.Create(pool)
		return pool
	}
	hasPools := func(ns *corev1.Namespace, want string) {
		w.Helper()
		w.Eventually(func() string {
			w.Get(ns)
			if got := ns.Annotations["ovn.kubernetes.io/ip_pool"]; got != want {
				return fmt.Sprintf("namespace %s has the pools %q, want %q", ns.Name, got, want)
			}
			return ""
		})
	}
	first := newPool("first", "shop")
	hasPools(shop, "first")
	time.Sleep(time.Until(first.CreationTimestamp.Add(time.Second))) // pools are ordered by creation, in seconds
	second := newPool("second", "lab", "shop")
	hasPools(shop, "first,second")
	hasPools(lab, "second")
	w.Change(second, func() { second.Spec.Namespaces = []string{"lab"} })
	hasPools(shop, "first")
	w.Delete(first)
	hasPools(shop, "")
	hasPools(lab, "second")
}

// TestAnInvalidChangeMovesNoNamespace: pods of the namespace would otherwise start in another network.
func TestAnInvalidChangeMovesNoNamespace(t *testing.T) {
	w := controllertest.New(t)
	w.Start(steps)
	shop := newNamespace(w, "shop", nil)
	newSubnet(w, "ovn-default", "10.16.0.0/16", nil)
	s := newSubnet(w, "shop", "10.20.0.0/24", func(s *kubeovnv1.SubnetSpec) { s.Namespaces = []string{"shop"} })
	w.InForce(s)
	hasAnnotations(w, shop, "shop", "10.20.0.0/24", "")
	w.Change(s, func() { s.Spec.Namespaces, s.Spec.CIDRBlock = nil, "10.16.0.0/24" })
	w.Refuse(s, "it overlaps with ovn-default")
	w.Rests("namespace")
	hasAnnotations(w, shop, "shop", "10.20.0.0/24", "")
	w.Change(s, func() { s.Spec.CIDRBlock = "10.21.0.0/24" })
	w.InForce(s)
	hasAnnotations(w, shop, "ovn-default", "10.16.0.0/16", "")
}
