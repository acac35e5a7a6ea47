// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/podset"
)

// namesakes returns the subjects of two pods whose ports have the same name: the second network of pod victim/p, and the first one of pod default/p.victim.net,
// which has forged results.
func namesakes() (second, first *subject) {
	subjectAt := func(namespace, name, provider string) *subject {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("of-" + name)}, Spec: corev1.PodSpec{NodeName: "n1"}}
		return &subject{port: kubeovnv1.NewPort(namespace, name, provider), pod: p}
	}
	second, first = subjectAt("victim", "p", "net.default"), subjectAt("default", "p.victim.net", kubeovnv1.ProviderOVN)
	first.published = true
	return second, first
}

func TestTheFirstOfTwoPortsKeepsTheirName(t *testing.T) {
	second, first := namesakes()
	if second.port.Name != first.port.Name {
		t.Fatalf("%s and %s are different names", second.port.Name, first.port.Name)
	}
	for name, order := range map[string][]*subject{"of another provider": {second, first}, "of the default provider": {first, second}} {
		t.Run("the first port is "+name, func(t *testing.T) {
			holder, late := order[0], order[1]
			recorder := events.NewFakeRecorder(10)
			r := &Reconciler{Recorder: recorder, Sets: podset.New()}
			r.ports.own(holder, kubeovnv1.Port{})
			r.ports.set(holder.port, func(h *holding) { h.pod = holder.pod.UID })
			for range 2 { // the event of the pod, and its pass
				r.ports.own(late, kubeovnv1.Port{})
				if r.awaitsName(holder) || !r.awaitsName(late) {
					t.Fatal("the port that has the name waits, or the other one does not")
				}
			}
			want := fmt.Sprintf("Warning %s port name %s belongs to another pod: choose another name for the pod", reasonNoAddress, late.port.Name)
			if got := <-recorder.Events; got != want || len(recorder.Events) > 0 {
				t.Errorf("events %q and %d more, want %q once", got, len(recorder.Events), want)
			}
			if r.owns(late) || !r.owns(holder) {
				t.Error("the allocation is not of the port that has the name")
			}
			// The deletion of the waiting pod changes nothing, and that of the other one ends the wait of a new pod.
			gone := &subject{port: late.port}
			if !r.awaitsName(gone) || len(r.ports.waiting) != 0 {
				t.Error("the deleted pod still waits, or its pass removes the port of the other one")
			}
			if !r.awaitsName(late) {
				t.Error("a new pod does not wait")
			}
			if h, known := r.ports.named(holder.port.Name); !known || h.Port != holder.port || h.pod != holder.pod.UID {
				t.Errorf("the name is of %+v", h)
			}
			if got := r.ports.drop(holder.port); !slices.Equal(got, []kubeovnv1.Port{late.port}) {
				t.Errorf("the ports %v are retried, want the waiting one", got)
			}
			r.ports.own(late, kubeovnv1.Port{})
			if r.awaitsName(late) || !r.awaitsName(holder) || len(r.ports.waiting[late.port.Name]) != 1 {
				t.Error("the port that waited does not have the name, or still waits")
			}
		})
	}
}

// A retained allocation has no pod, so the name has no owner but the retained port, which gets it back from the event of another pod.
func TestARetainedPortKeepsItsName(t *testing.T) {
	second, first := namesakes()
	var p ports
	p.own(first, second.port)
	if h, known := p.named(first.port.Name); known {
		t.Errorf("the name of a retained port is of %+v", h.Port)
	}
	p.own(first, kubeovnv1.Port{}) // before the start has read the IP object of the retained port
	p.wait(first.port, first.pod.UID)
	if woken := p.drop(second.port); len(woken) != 1 || woken[0] != first.port {
		t.Errorf("the end of the retention wakes %v", woken)
	}
	p.own(second, second.port)
	if h, _ := p.named(second.port.Name); h.Port != second.port {
		t.Errorf("the name is of %+v", h.Port)
	}
}

// At the start, the event of a new pod may come before the published results of another pod, and before the northbound database is read.
func TestRestoredNamesComeBeforeThoseOfNewPods(t *testing.T) {
	w := controllertest.New(t)
	w.Subnet("ovn-default", func(s *kubeovnv1.SubnetSpec) { s.CIDRBlock = "10.16.0.0/24" })
	process := w.Start(controllertest.Steps{
		Setup:   func(context.Context, *controllertest.Process) error { return nil },
		Restore: func(context.Context, *controllertest.Process) error { return nil },
	})
	second, published := namesakes()
	r := &Reconciler{Northbound: process.Engine}
	if r.restoresName(published) {
		t.Error("a name that no port has is restored")
	}
	r.ports.own(second, kubeovnv1.Port{})
	if !r.restoresName(published) {
		t.Error("the pod with published results does not get the name of a new pod")
	}
	w.Must(process.Engine.Apply(t.Context(), translate.PodOwner(second.port), translate.Pod(translate.PodInputs{
		Namespace: second.port.Namespace, Name: second.port.Owner, Provider: second.port.Provider, Subnet: "ovn-default",
		Addresses: []netip.Addr{netip.MustParseAddr("10.16.0.2")}, MAC: []byte{2, 0, 0, 0, 0, 2},
	})))
	if r.restoresName(published) {
		t.Error("a pod with published results gets the name of a port in the northbound database")
	}
	published.pod.Annotations = nil
	if r.restoresName(published) {
		t.Error("a new pod gets the name")
	}
}
