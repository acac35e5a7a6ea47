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
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/controllers/operator/status"
	"github.com/kiln-net/kiln/internal/version"
)

// TestKeepTenancy upgrades from a version without spec.tenancy, with objects that it has served and one without a status.
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
		vpc("kept-new", kubeovnv1.VpcSpec{}, nil),
		vpc(kubeovnv1.DefaultVpc, kubeovnv1.VpcSpec{}, served),
		subnet("kept-plain", kubeovnv1.SubnetSpec{CIDRBlock: "10.7.0.0/24"}, ready),
		subnet("kept-private", kubeovnv1.SubnetSpec{CIDRBlock: "10.8.0.0/24", Private: true, PortSecurity: kubeovnv1.PortSecurityEnforced}, ready),
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
		withStatus := o.DeepCopyObject().(client.Object)
		g.Expect(theWorld.admin.Create(t.Context(), o)).To(Succeed())
		t.Cleanup(func() { _ = theWorld.admin.Delete(context.Background(), o) })
		withStatus.SetResourceVersion(o.GetResourceVersion())
		g.Expect(theWorld.admin.Status().Update(t.Context(), withStatus)).To(Succeed())
	}
	newPass := func() *pass { // of a cluster that an earlier version has installed
		p := seeing(time.Now())
		p.cluster.Status.Northbound.ClusterID = "c"
		return p
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
	p := newPass()
	g.Expect((&Reconciler{Client: without, APIReader: without, Namespace: testNamespace}).keepTenancy(t.Context(), p)).To(MatchError(HavePrefix("apply the manifests in config/rbac")))
	g.Expect(p.cluster.Status.StrictSince).To(BeNil(), "it must be tried again")
	g.Expect(read()).To(Equal(before))

	p = newPass()
	g.Expect(operate.keepTenancy(t.Context(), p)).To(Succeed())
	g.Expect(p.cluster.Status.StrictSince).To(BeNil(), "the earlier version serves objects until it is replaced")
	kept := read()
	g.Expect(kept).To(Equal(map[string]allowed{
		"kept-old":           {access: kubeovnv1.ClusterAccessServices, namespaces: all},
		"kept-said":          {access: kubeovnv1.ClusterAccessNone, namespaces: []kubeovnv1.AllowedNamespace{"b"}},
		"kept-new":           {},
		kubeovnv1.DefaultVpc: {},
		"kept-plain":         {security: kubeovnv1.PortSecurityRequested},
		"kept-private":       {security: kubeovnv1.PortSecurityEnforced, namespaces: all},
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
		"IPPool kept-bound this object keeps its previous behaviour: spec.allowedNamespaces is *",
		"SecurityGroup kept-group this object keeps its previous behaviour: spec.allowedNamespaces is *",
		"Vip kept-vip this object keeps its previous behaviour: spec.allowedNamespaces is *"))

	// Once a controller that knows the defaults leads, strict objects stay strict, also when the OVNCluster is created
	// again.
	leading := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{v1alpha1.ComponentLabel: render.ControllerName}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Image: "pinned"}}},
		Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: v1alpha1.PodConditionNorthbound, Status: corev1.ConditionTrue}}},
	}
	p = newPass()
	p.Pods = []corev1.Pod{leading}
	old := objects[0].(*kubeovnv1.Vpc)
	old.Spec.AllowedNamespaces, old.Spec.ClusterAccess = nil, ""
	g.Expect(theWorld.admin.Update(t.Context(), old)).To(Succeed())
	unmark := func() {
		for _, mark := range []string{strictMark, strictGroupsMark} {
			_ = theWorld.admin.Delete(context.Background(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: mark}})
		}
	}
	t.Cleanup(unmark)
	g.Expect(operate.keepTenancy(t.Context(), p)).To(Succeed())
	g.Expect(p.cluster.Status.StrictSince).NotTo(BeNil())
	again := newPass()
	g.Expect(operate.keepTenancy(t.Context(), again)).To(Succeed())
	g.Expect(again.cluster.Status.StrictSince.Unix()).To(Equal(p.cluster.Status.StrictSince.Unix()))
	g.Expect(read()["kept-old"]).To(Equal(allowed{}))

	// A controller that knows spec.tenancy may not know allowedNamespaces of groups yet. The steps end separately.
	g.Expect(p.cluster.Status.StrictGroupsSince).To(BeNil(), "the running controller has another image")
	inGroup := objects[len(objects)-6].(*kubeovnv1.SecurityGroup)
	inGroup.Spec.AllowedNamespaces = nil
	g.Expect(theWorld.admin.Update(t.Context(), inGroup)).To(Succeed())
	g.Expect(operate.keepTenancy(t.Context(), again)).To(Succeed())
	g.Expect(read()["kept-group"].namespaces).To(Equal(all), "the earlier version serves it")
	inGroup.Spec.AllowedNamespaces = nil
	g.Expect(theWorld.admin.Update(t.Context(), inGroup)).To(Succeed())

	// The same applies for a controller of the operator's image that does not lead yet, and from the first pass of a new
	// installation.
	unmark()
	started := newPass()
	started.Pods = []corev1.Pod{{ObjectMeta: leading.ObjectMeta, Spec: corev1.PodSpec{Containers: []corev1.Container{{Image: operate.Image}}}}}
	g.Expect(operate.keepTenancy(t.Context(), started)).To(Succeed())
	g.Expect(started.cluster.Status.StrictSince).NotTo(BeNil())
	g.Expect(started.cluster.Status.StrictGroupsSince).NotTo(BeNil())
	g.Expect(read()["kept-old"]).To(Equal(allowed{}))
	g.Expect(read()["kept-group"]).To(Equal(allowed{}))
	unmark()
	fresh := seeing(time.Now())
	g.Expect(operate.keepTenancy(t.Context(), fresh)).To(Succeed())
	g.Expect(fresh.cluster.Status.StrictSince).NotTo(BeNil())
	g.Expect(read()["kept-old"].namespaces).To(Equal(all), "Kube-OVN may have served it")
}

// spec.image can name the operator's image in another registry: only the controller's version shows that it knows the defaults.
func TestAControllerOfTheSameVersionKnowsTheDefaults(t *testing.T) {
	defer func(before string) { version.Kiln = before }(version.Kiln)
	version.Kiln = "v2"
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "controller", UID: "u"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "mirror/kiln@sha256:1"}}}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", ContainerID: "containerd://1"}}
	r := tenancyKeeper{image: "example.com/kiln:v2", versions: status.NewVersions(nil)}
	knows := func(want bool, when string) {
		t.Helper()
		if got := r.runsOwnVersion([]*corev1.Pod{pod}); got != want {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
	knows(false, "before the controller reports its version")
	r.versions.Note(pod, version.Programs{Kiln: "v1"})
	knows(false, "an earlier version")
	r.versions.Note(pod, version.Programs{Kiln: "v2"})
	knows(true, "the operator's version")
	version.Kiln = version.Development
	r.versions.Note(pod, version.Programs{Kiln: version.Development})
	knows(false, "two builds of a working tree")
}
