// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/testing/gate"
	"github.com/kiln-net/kiln/supervisor/adminapi"
)

func TestNextTunnels(t *testing.T) {
	const geneve, vxlan = v1alpha1.TunnelGeneve, v1alpha1.TunnelVXLAN
	type types = []v1alpha1.TunnelType
	for _, tt := range []struct {
		name      string
		offered   types
		want      v1alpha1.TunnelType
		nodesDone bool
		next      types
	}{
		{"nothing changes", types{geneve}, geneve, true, types{geneve}},
		{"both first", types{geneve}, vxlan, true, types{geneve, vxlan}},
		{"both until each node offers both", types{geneve, vxlan}, vxlan, false, types{geneve, vxlan}},
		{"then only the new one", types{geneve, vxlan}, vxlan, true, types{vxlan}},
		{"undone before each node offers both", types{geneve, vxlan}, geneve, false, types{geneve}},
		{"undone while nodes drop the old one", types{vxlan}, geneve, false, types{vxlan, geneve}},
	} {
		if got := nextTunnels(tt.offered, tt.want, tt.nodesDone); !slices.Equal(got, tt.next) {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.next)
		}
	}
}

func TestNodesOfferBothTunnelTypesDuringAChange(t *testing.T) {
	gate.Skip(t, gate.OperatorLong)
	s := newInstallation(t)
	w := s.atWork(t)
	g := newG(t)
	offered := func() []v1alpha1.TunnelType { return s.cluster(t).Status.TunnelTypes }
	set := func() *appsv1.DaemonSet {
		o := &appsv1.DaemonSet{}
		g.Expect(s.exists(t, o, render.OpenVSwitch)()).To(Succeed())
		return o
	}
	g.Expect(offered()).To(Equal([]v1alpha1.TunnelType{v1alpha1.TunnelGeneve}))
	southbound := s.members[render.Southbound.Flag]
	southbound.setBeyond(adminapi.BeyondVXLAN{Datapaths: 2, Ports: 7})
	s.changeSpec(t, func(spec *v1alpha1.OVNClusterSpec) { spec.Network.TunnelType = v1alpha1.TunnelVXLAN })
	g.Eventually(s.condition(t, "Degraded")).Should(HavePrefix("True ComponentTrouble: ovs-ovn: network.tunnelType vxlan is not applied: " +
		"2 subnets and VPCs have tunnel keys above 4095, and 7 ports have keys above 2047, which VXLAN cannot carry"))
	g.Expect(s.condition(t, "Available")()).To(HavePrefix("True"))
	g.Expect(render.TunnelType(set())).To(Equal(v1alpha1.TunnelGeneve))
	g.Expect(w.history()).To(BeEmpty())

	southbound.setBeyond(adminapi.BeyondVXLAN{})
	s.changeSpec(t, func(spec *v1alpha1.OVNClusterSpec) { spec.Central.Backup.Keep = 8 }) // wakes the operator
	g.Eventually(w.history).Should(Equal(slices.Concat(forward[:4], forward[:4])), "the pods of each node are replaced twice")
	g.Eventually(offered).Should(Equal([]v1alpha1.TunnelType{v1alpha1.TunnelVXLAN}))
	g.Eventually(func() bool { return s.complete(t) }).Should(BeTrue())
	g.Expect(set().Spec.Template.Spec.Containers[0].Args).To(ContainElement("--tunnel-type=vxlan"))
	g.Expect(w.history()).To(HaveLen(8))
}
