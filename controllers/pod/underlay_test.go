// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/eventually"
)

func TestPodsOfAnUnderlaySubnet(t *testing.T) {
	w := newWorld(t)
	vlan := &kubeovnv1.Vlan{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: kubeovnv1.VlanSpec{ID: 30, Provider: "net1"}}
	w.Create(vlan)
	works := func(id *int) {
		t.Helper()
		vlan.Status.ValidatedID = id
		w.Must(w.Client.Status().Update(w.Context(), vlan))
	}
	w.subnet("ovn-default", "10.16.0.0/24")
	w.Subnet("office", func(s *kubeovnv1.SubnetSpec) {
		s.CIDRBlock, s.Vlan, s.Namespaces = "10.30.0.0/29", "v", []string{"office"}
	})
	for _, name := range []string{"office", "other"} {
		w.namespace(name, nil)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "host"}}
	w.Create(node)
	base := node.DeepCopy()
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.30.0.2"}}
	w.Must(w.Client.Status().Patch(w.Context(), node, client.MergeFrom(base)))
	w.start()

	works(&vlan.Spec.ID)
	first := w.pod("office", "first")
	if got := first.Annotations[kubeovnv1.AnnotationIPAddress.Key()]; got != "10.30.0.3" {
		t.Errorf("the first pod has %s: node host has 10.30.0.2", got)
	}
	if got := first.Annotations; got[kubeovnv1.AnnotationProviderNetwork.Key()] != "net1" || got[kubeovnv1.AnnotationVlanID.Key()] != "30" {
		t.Errorf("annotations %v", got)
	}
	if overlay := w.pod("other", "overlay"); overlay.Annotations[kubeovnv1.AnnotationProviderNetwork.Key()] != "" {
		t.Error("a pod of an overlay subnet has a provider network")
	}
	asked := newPod("office", "asked")
	asked.Annotations = map[string]string{kubeovnv1.AnnotationIPAddress.Key(): "10.30.0.2"}
	w.Create(asked)
	w.warned(asked, "10.30.0.2")

	w.Change(vlan, func() { vlan.Spec.ID = 31 })
	if second := w.pod("office", "second"); second.Annotations[kubeovnv1.AnnotationVlanID.Key()] != "30" {
		t.Errorf("a pod has VLAN %s before its Vlan works with it", second.Annotations[kubeovnv1.AnnotationVlanID.Key()])
	}
	works(&vlan.Spec.ID)
	eventually.Wait{For: "the pod's VLAN must follow"}.Holds(t, func() bool {
		w.Get(first)
		return first.Annotations[kubeovnv1.AnnotationVlanID.Key()] == "31"
	})

	egress := func() (members []string) { // of the nodes' sets
		for _, set := range w.Database.Rows("Address_Set") {
			members = append(members, set.Strings("addresses")...)
		}
		return members
	}
	if got := egress(); slices.Contains(got, "10.30.0.3") {
		t.Errorf("a pod behind a physical gateway is in the sets of nodes: %v", got)
	}
	office := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "office"}}
	w.Get(office)
	w.Change(office, func() { office.Spec.LogicalGateway = true })
	w.InForce(office)
	eventually.Wait{For: "the running pod must leave through its node"}.Holds(t, func() bool { return slices.Contains(egress(), "10.30.0.3") })
	w.Change(office, func() { office.Spec.LogicalGateway = false })
	w.InForce(office)
	eventually.Wait{For: "the running pod must leave through the physical gateway"}.Holds(t, func() bool { return !slices.Contains(egress(), "10.30.0.3") })

	thief := newPod("office", "localnet")
	w.Create(thief)
	w.warned(thief, "port name localnet.office belongs to subnet office")

	works(nil)
	early := newPod("office", "early")
	w.Create(early)
	w.warned(early, "Vlan v of subnet office is not valid")
	works(&vlan.Spec.ID)
	eventually.Wait{For: "the pod must get its VLAN"}.Holds(t, func() bool {
		w.Get(early)
		return early.Annotations[kubeovnv1.AnnotationVlanID.Key()] == "31"
	})
}
