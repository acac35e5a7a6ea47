// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
)

// TestEachComponentWaitsForTheOneBefore starts one component after another.
func TestEachComponentWaitsForTheOneBefore(t *testing.T) {
	s := newScenario(t)
	s.create(t)
	g := newG(t)
	g.Eventually(s.condition(t, "Progressing")).Should(HavePrefix("True WaitingForDatabase: the northbound database has no leader"))
	before := func(o client.Object, name string) {
		g.Expect(apierrors.IsNotFound(s.exists(t, o, name)())).To(BeTrue(), name)
	}

	before(&appsv1.StatefulSet{}, render.SouthboundName)
	s.startDatabase(t, render.Northbound, northboundID)
	g.Eventually(s.exists(t, &appsv1.StatefulSet{}, render.SouthboundName)).Should(Succeed())
	g.Eventually(func() string { return s.cluster(t).Status.Northbound.Leader }).Should(Equal(node))
	nb := s.cluster(t).Status.Northbound
	g.Expect(nb.ClusterID).To(Equal(northboundID))
	g.Expect(nb.Term).To(Equal(int64(3)))
	g.Expect(nb.Members).To(Equal([]v1alpha1.DatabaseMember{{Node: node, Address: "192.0.2.1", ServerID: "server-nb", Role: "leader"}}))

	before(&appsv1.Deployment{}, render.NorthdName)
	s.startDatabase(t, render.Southbound, southboundID)
	g.Eventually(s.exists(t, &appsv1.Deployment{}, render.NorthdName)).Should(Succeed())

	before(&appsv1.DaemonSet{}, render.OpenVSwitch)
	s.settle(t, s.named(&appsv1.Deployment{}, render.NorthdName), 1)
	g.Eventually(s.exists(t, &appsv1.DaemonSet{}, render.OpenVSwitch)).Should(Succeed())

	before(&appsv1.Deployment{}, render.ControllerName)
	s.settle(t, s.named(&appsv1.DaemonSet{}, render.OpenVSwitch), 2)
	g.Eventually(s.exists(t, &appsv1.Deployment{}, render.ControllerName)).Should(Succeed())

	before(&appsv1.DaemonSet{}, render.AgentName)
	s.settle(t, s.named(&appsv1.Deployment{}, render.ControllerName), 1)
	g.Eventually(s.exists(t, &appsv1.DaemonSet{}, render.AgentName)).Should(Succeed())
	g.Expect(s.condition(t, "Available")()).To(HavePrefix("False"))
}
