// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovnnat

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/podset"
)

// After a start, the first request can be of the youngest pod.
func TestTheFirstVerdictKnowsAllPods(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), kubeovnv1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	pod := func(namespace, name string, age time.Duration, requests ...kubeovnv1.Annotation) *corev1.Pod {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0).Add(-age))},
			Spec:       corev1.PodSpec{NodeName: "n1"},
		}
		p.Annotations = map[string]string{kubeovnv1.AnnotationAllocated.Key(): "true", kubeovnv1.AnnotationPodUID.Key(): name}
		for _, request := range requests {
			p.Annotations[request.Key()] = "192.0.2.9"
		}
		return p
	}
	const eip, snat = kubeovnv1.AnnotationEip, kubeovnv1.AnnotationSnat
	finished := pod("shop", "finished", 5*time.Hour, eip)
	finished.Status.Phase = corev1.PodSucceeded
	// The pod of a virtual machine after a migration. The rule is of its former pod.
	target := pod("farm", "virt-launcher-vm-b", time.Minute, snat)
	target.Annotations[kubeovnv1.AnnotationMachine.Key()] = "vm"
	target.OwnerReferences = []metav1.OwnerReference{{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Name: "vm", UID: "u", Controller: new(true)}}
	rule := ruleOf(translate.KindOvnSnatRule, types.NamespacedName{Namespace: "farm", Name: "vm"}, "web")
	rule.SetCreationTimestamp(metav1.NewTime(time.Unix(1e9, 0).Add(-6 * time.Hour)))
	reader := fake.NewClientBuilder().WithScheme(scheme).WithIndex(&corev1.Pod{}, indexOwner, indexedOwner).
		WithIndex(&kubeovnv1.OvnFip{}, indexOwner, ownersOf).WithIndex(&kubeovnv1.OvnSnatRule{}, indexOwner, ownersOf).WithObjects(
		rule, target, pod("farm", "one", 5*time.Hour, eip, snat), pod("farm", "two", 4*time.Hour, snat),
		finished, pod("shop", "old", 4*time.Hour, eip, snat), pod("shop", "none", 3*time.Hour), pod("shop", "late", 2*time.Hour, snat), pod("shop", "young", time.Hour, snat),
		pod("bank", "young", time.Hour, snat),
	).Build()
	r := &podRules{Reconciler: &Reconciler{Client: reader, Sets: podset.New(), MaxPodRules: 3}}
	if err := r.count(t.Context()); err != nil {
		t.Fatal(err)
	}
	for owner, within := range map[types.NamespacedName]bool{
		{Namespace: "shop", Name: "old"}: true, {Namespace: "shop", Name: "late"}: true, {Namespace: "shop", Name: "young"}: false, {Namespace: "bank", Name: "young"}: true,
		{Namespace: "farm", Name: "vm"}: true, {Namespace: "farm", Name: "one"}: true, {Namespace: "farm", Name: "two"}: false,
	} {
		if why := r.beyond(owner); (why == "") != within {
			t.Errorf("%s: %q", owner, why)
		}
	}
}
