// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
)

// TestKeepTenancy takes over objects that Kube-OVN has served, and objects without a status.
func TestKeepTenancy(t *testing.T) {
	g := newG(t)
	theWorld.discard(t)
	operate := theWorld.operator(t)
	all := []kubeovnv1.AllowedNamespace{"*"}
	served := []kubeovnv1.Condition{{Type: "Ready", Status: "True"}}
	vpc := func(name string, spec kubeovnv1.VpcSpec, conditions []kubeovnv1.Condition) *kubeovnv1.Vpc {
		return &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec, Status: kubeovnv1.VpcStatus{Conditions: conditions}}
	}
	subnet := func(name string, spec kubeovnv1.SubnetSpec, conditions []metav1.Condition) *kubeovnv1.Subnet {
		return &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec, Status: kubeovnv1.SubnetStatus{Conditions: conditions}}
	}
	pool := func(name string, namespaces []string) *kubeovnv1.IPPool {
		return &kubeovnv1.IPPool{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.IPPoolSpec{Subnet: "kept-plain", IPs: []string{"10.7.0.5"}, Namespaces: namespaces},
			Status: kubeovnv1.IPPoolStatus{Conditions: served},
		}
	}
	group := func(name string, conditions []kubeovnv1.Condition) *kubeovnv1.SecurityGroup {
		return &kubeovnv1.SecurityGroup{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: kubeovnv1.SecurityGroupStatus{Conditions: conditions}}
	}
	vip := func(name string, spec kubeovnv1.VipSpec, conditions []kubeovnv1.Condition) *kubeovnv1.Vip {
		return &kubeovnv1.Vip{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec, Status: kubeovnv1.VipStatus{Conditions: conditions}}
	}
	ready := []metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Ready", LastTransitionTime: metav1.Now()}}
	objects := []client.Object{
		vpc("kept-old", kubeovnv1.VpcSpec{Namespaces: []string{"a"}}, served),
		vpc("kept-said", kubeovnv1.VpcSpec{ClusterAccess: kubeovnv1.ClusterAccessNone, AllowedNamespaces: []kubeovnv1.AllowedNamespace{"b"}}, served),
		vpc("kept-new", kubeovnv1.VpcSpec{ExtraExternalSubnets: []string{"kept-external", "kept-plain"}}, nil),
		vpc(kubeovnv1.DefaultVpc, kubeovnv1.VpcSpec{}, served),
		subnet("kept-plain", kubeovnv1.SubnetSpec{CIDRBlock: "10.7.0.0/24"}, ready),
		subnet("kept-private", kubeovnv1.SubnetSpec{CIDRBlock: "10.8.0.0/24", Private: true, PortSecurity: kubeovnv1.PortSecurityEnforced}, ready),
		subnet("kept-external", kubeovnv1.SubnetSpec{CIDRBlock: "10.10.0.0/24", Vlan: "v", PortSecurity: kubeovnv1.PortSecurityEnforced}, ready),
		subnet("kept-physical", kubeovnv1.SubnetSpec{CIDRBlock: "10.11.0.0/24", Vlan: "v", PortSecurity: kubeovnv1.PortSecurityEnforced}, ready),
		subnet("kept-unseen", kubeovnv1.SubnetSpec{CIDRBlock: "10.9.0.0/24", Private: true}, nil),
		subnet(kubeovnv1.JoinSubnet, kubeovnv1.SubnetSpec{CIDRBlock: "100.64.0.0/16"}, ready),
		pool("kept-bound", []string{"a"}),
		pool("kept-common", nil),
		group("kept-group", served),
		group("kept-unseen-group", nil),
		vip("kept-vip", kubeovnv1.VipSpec{}, served),
		vip("kept-own-vip", kubeovnv1.VipSpec{Namespace: "a"}, served),
		vip("kept-balancer", kubeovnv1.VipSpec{Type: kubeovnv1.VipTypeSwitchLB}, served),
		vip("kept-unseen-vip", kubeovnv1.VipSpec{}, nil),
	}
	for _, o := range objects {
		// The API server may enforce the policy kiln-network-removal of the previous test's installation for a moment.
		o.SetAnnotations(map[string]string{v1alpha1.AnnotationAllowRemoval: "true"})
		withStatus := o.DeepCopyObject().(client.Object)
		g.Expect(theWorld.admin.Create(t.Context(), o)).To(Succeed())
		t.Cleanup(func() {
			if err := theWorld.admin.Delete(context.Background(), o); err != nil {
				t.Error(err)
			}
		})
		withStatus.SetResourceVersion(o.GetResourceVersion())
		g.Expect(theWorld.admin.Status().Update(t.Context(), withStatus)).To(Succeed())
	}
	type allowed struct {
		access     kubeovnv1.ClusterAccess
		security   kubeovnv1.PortSecurity
		namespaces []kubeovnv1.AllowedNamespace
	}
	read := func() map[string]allowed {
		found := map[string]allowed{}
		for _, o := range objects {
			g.Expect(theWorld.admin.Get(t.Context(), client.ObjectKeyFromObject(o), o)).To(Succeed())
			switch o := o.(type) {
			case *kubeovnv1.Vpc:
				found[o.Name] = allowed{access: o.Spec.ClusterAccess, namespaces: o.Spec.AllowedNamespaces}
			case *kubeovnv1.Subnet:
				found[o.Name] = allowed{security: o.Spec.PortSecurity, namespaces: o.Spec.AllowedNamespaces}
			case *kubeovnv1.IPPool:
				found[o.Name] = allowed{namespaces: o.Spec.AllowedNamespaces}
			case *kubeovnv1.SecurityGroup:
				found[o.Name] = allowed{namespaces: o.Spec.AllowedNamespaces}
			case *kubeovnv1.Vip:
				found[o.Name] = allowed{namespaces: o.Spec.AllowedNamespaces}
			}
		}
		return found
	}
	before := read()

	stranger := rest.CopyConfig(theWorld.config)
	stranger.Impersonate = rest.ImpersonationConfig{UserName: "nobody", Groups: []string{"system:authenticated"}}
	without, err := client.New(stranger, client.Options{Scheme: theWorld.admin.Scheme()})
	g.Expect(err).NotTo(HaveOccurred())
	p := seeing(time.Now())
	g.Expect((&Reconciler{Client: without, APIReader: without, Namespace: testNamespace}).keepTenancy(t.Context(), p)).To(MatchError(HavePrefix("apply the manifests in config/rbac")))
	g.Expect(p.cluster.Status.StrictSince).To(BeNil(), "it must be tried again")
	g.Expect(read()).To(Equal(before))

	t.Cleanup(func() {
		mark := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: strictMark}}
		if err := theWorld.admin.Delete(context.Background(), mark); err != nil {
			t.Error(err)
		}
	})
	p = seeing(time.Now())
	g.Expect(operate.keepTenancy(t.Context(), p)).To(Succeed())
	g.Expect(p.cluster.Status.StrictSince).NotTo(BeNil())
	g.Expect(read()).To(Equal(map[string]allowed{
		"kept-old":           {access: kubeovnv1.ClusterAccessServices, namespaces: all},
		"kept-said":          {access: kubeovnv1.ClusterAccessNone, namespaces: []kubeovnv1.AllowedNamespace{"b"}},
		"kept-new":           {},
		kubeovnv1.DefaultVpc: {},
		"kept-plain":         {security: kubeovnv1.PortSecurityRequested},
		"kept-private":       {security: kubeovnv1.PortSecurityEnforced, namespaces: all},
		"kept-external":      {security: kubeovnv1.PortSecurityEnforced, namespaces: all},
		"kept-physical":      {security: kubeovnv1.PortSecurityEnforced},
		"kept-unseen":        {},
		kubeovnv1.JoinSubnet: {},
		"kept-bound":         {namespaces: all},
		"kept-common":        {},
		"kept-group":         {namespaces: all},
		"kept-unseen-group":  {},
		"kept-vip":           {namespaces: all},
		"kept-own-vip":       {},
		"kept-balancer":      {},
		"kept-unseen-vip":    {},
	}))
	g.Eventually(func() []string {
		var events eventsv1.EventList
		g.Expect(theWorld.admin.List(t.Context(), &events)).To(Succeed())
		var notes []string
		for _, e := range events.Items {
			if e.Reason == eventBehaviourKept {
				notes = append(notes, e.Regarding.Kind+" "+e.Regarding.Name+" "+e.Note[:strings.Index(e.Note, ". Remove")])
			}
		}
		return notes
	}).Should(ConsistOf(
		"Vpc kept-old this object keeps its previous behaviour: spec.clusterAccess is Services; spec.allowedNamespaces is *",
		"Subnet kept-plain this object keeps its previous behaviour: spec.portSecurity is Requested",
		"Subnet kept-private this object keeps its previous behaviour: spec.allowedNamespaces is *",
		"Subnet kept-external this object keeps its previous behaviour: spec.allowedNamespaces is *",
		"IPPool kept-bound this object keeps its previous behaviour: spec.allowedNamespaces is *",
		"SecurityGroup kept-group this object keeps its previous behaviour: spec.allowedNamespaces is *",
		"Vip kept-vip this object keeps its previous behaviour: spec.allowedNamespaces is *"))

	// Strict objects stay strict, also when the OVNCluster is created again.
	strict := objects[0].(*kubeovnv1.Vpc)
	strict.Spec.AllowedNamespaces, strict.Spec.ClusterAccess = nil, ""
	g.Expect(theWorld.admin.Update(t.Context(), strict)).To(Succeed())
	again := seeing(time.Now())
	g.Expect(operate.keepTenancy(t.Context(), again)).To(Succeed())
	g.Expect(again.cluster.Status.StrictSince.Unix()).To(Equal(p.cluster.Status.StrictSince.Unix()))
	g.Expect(read()["kept-old"]).To(Equal(allowed{}))

	// The same if the mark is lost while Kiln serves them.
	g.Expect(theWorld.admin.Delete(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: strictMark}})).To(Succeed())
	again = seeing(time.Now())
	again.cluster.Status.Northbound.ClusterID = "c9e3bd2f-2a07-4f5c-a5d2-9a0d4f3bb0a1"
	g.Expect(operate.keepTenancy(t.Context(), again)).To(Succeed())
	g.Expect(again.cluster.Status.StrictSince).NotTo(BeNil())
	g.Expect(read()["kept-old"]).To(Equal(allowed{}))
}
