// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/testing/gate"
)

func TestOutgrows(t *testing.T) {
	for _, tt := range []struct {
		name, wanted, current string
		outgrows, elsewhere   bool
	}{
		{"the same", "10.16.0.0/16", "10.16.0.0/16", false, false},
		{"a containing CIDR", "10.16.0.0/15", "10.16.0.0/16", true, false},
		{"a CIDR inside", "10.16.0.0/17", "10.16.0.0/16", false, false},
		{"another CIDR, which the user has chosen", "10.16.0.0/16", "10.50.0.0/16", false, true},
		{"a second family", "10.16.0.0/16,fd00::/64", "10.16.0.0/16", true, false},
		{"the second family grows", "10.16.0.0/16,fd00::/48", "fd00::/64,10.16.0.0/16", true, false},
		{"one family less", "10.16.0.0/16", "10.16.0.0/16,fd00::/64", false, false},
	} {
		wanted, current := parsed(strings.Split(tt.wanted, ",")), parsed(strings.Split(tt.current, ","))
		if outgrows, elsewhere := outgrows(wanted, current), elsewhere(wanted, current); outgrows != tt.outgrows || elsewhere != tt.elsewhere {
			t.Errorf("%s: it outgrows: %t, it is elsewhere: %t", tt.name, outgrows, elsewhere)
		}
	}
}

// addSubnet creates a subnet and deletes it at the end of the test.
func (s *scenario) addSubnet(t *testing.T, name, cidrs string) *kubeovnv1.Subnet {
	t.Helper()
	allowed := map[string]string{v1alpha1.AnnotationAllowRemoval: "true"} // by the policy kiln-network-removal
	subnet := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: allowed}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: cidrs}}
	if err := s.admin.Create(t.Context(), subnet); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.IgnoreNotFound(s.admin.Delete(context.Background(), subnet)); err != nil {
			t.Error(err)
		}
	})
	return subnet
}

func TestPodCIDRsAreRecordedOnceTheSubnetHasThem(t *testing.T) {
	gate.Skip(t, gate.OperatorLong)
	s := newInstallation(t)
	s.atWork(t)
	g := newG(t)
	wake := func() { s.changeSpec(t, func(spec *v1alpha1.OVNClusterSpec) { spec.Central.Backup.Keep++ }) }
	recorded := func() []string { return append(s.cluster(t).Status.PodCIDRs, s.cluster(t).Status.JoinCIDRs...) }
	g.Expect(recorded()).To(BeEmpty(), "the subnets do not exist")
	pods := s.addSubnet(t, kubeovnv1.DefaultSubnet, "10.16.0.0/16")
	s.addSubnet(t, kubeovnv1.JoinSubnet, "100.70.0.0/16")
	wake()
	g.Eventually(s.condition(t, "Degraded")).Should(Equal("True ComponentTrouble: kube-ovn-controller: network.joinCIDRs 100.64.0.0/16 are not in use, " +
		"because subnet join has 100.70.0.0/16: set the CIDRs of the subnet"))
	s.changeSpec(t, func(spec *v1alpha1.OVNClusterSpec) { spec.Network.JoinCIDRs = []string{"100.70.0.0/16"} })
	g.Eventually(recorded).Should(Equal([]string{"10.16.0.0/16", "100.70.0.0/16"}))

	s.changeSpec(t, func(spec *v1alpha1.OVNClusterSpec) { spec.Network.PodCIDRs = []string{"10.0.0.0/10"} })
	g.Eventually(s.condition(t, "Progressing")).Should(
		Equal("True WaitingForComponents: kube-ovn-controller: subnet ovn-default has 10.16.0.0/16 and grows to 10.0.0.0/10"))
	g.Expect(s.condition(t, "Available")()).To(HavePrefix("True"))
	controller := &appsv1.Deployment{}
	g.Expect(s.exists(t, controller, render.ControllerName)()).To(Succeed())
	g.Expect(render.CIDRs(controller)).To(ContainElement("10.0.0.0/10"))
	g.Expect(recorded()).To(HaveExactElements("10.16.0.0/16", "100.70.0.0/16"))

	pods.Spec.CIDRBlock = "10.0.0.0/10"
	g.Expect(s.admin.Update(t.Context(), pods)).To(Succeed())
	wake()
	g.Eventually(recorded).Should(Equal([]string{"10.0.0.0/10", "100.70.0.0/16"}))
	g.Eventually(func() bool { return s.complete(t) }).Should(BeTrue())
}

func TestAnInstallationHasTheCIDRsOfExistingSubnets(t *testing.T) {
	s := newScenario(t)
	g := newG(t)
	s.addSubnet(t, kubeovnv1.DefaultSubnet, "10.50.0.0/16")
	s.create(t)
	g.Eventually(s.condition(t, "Degraded")).Should(Equal("True InvalidNetwork: network.podCIDRs 10.16.0.0/16 do not have the addresses of subnet " +
		"ovn-default, which exists with 10.50.0.0/16: set the CIDRs of the subnet, or delete it"))
	s.changeSpec(t, func(spec *v1alpha1.OVNClusterSpec) { spec.Network.PodCIDRs = []string{"10.50.0.0/16"} })
	g.Eventually(s.exists(t, &appsv1.StatefulSet{}, render.NorthboundName)).Should(Succeed())
}
