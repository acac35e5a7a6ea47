// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

func TestTheRouterAnswersForAddressesOfLoadBalancers(t *testing.T) {
	n := start(t)
	n.ready("shop", kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/24,fd00:20::/64"})
	port := func(proxied string) {
		t.Helper()
		n.option("Logical_Switch_Port", "name", "shop-ovn-cluster", "options", "arp_proxy", proxied)
	}
	port("")
	has := func(name, kind, v4, v6 string) *kubeovnv1.Vip {
		v := &kubeovnv1.Vip{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.VipSpec{Subnet: "shop", Type: kind, V4IP: v4, V6IP: v6}}
		n.Create(v)
		n.Cleanup(func() { _ = n.Client.Delete(n.Context(), v) })
		v.Status = kubeovnv1.VipStatus{V4IP: v4, V6IP: v6}
		n.Must(n.Client.Status().Update(n.Context(), v))
		return v
	}
	both := has("both", kubeovnv1.VipTypeSwitchLB, "10.20.0.100", "fd00:20::100")
	port("10.20.0.100 fd00:20::100")
	has("reserved", kubeovnv1.VipTypeKubeHostVM, "10.20.0.101", "")
	has("one", kubeovnv1.VipTypeSwitchLB, "10.20.0.50", "")
	port("10.20.0.50 10.20.0.100 fd00:20::100")
	n.Must(n.Client.Delete(n.Context(), both))
	port("10.20.0.50")

	for kind, v4 := range map[string]string{"": "10.20.0.60", "lrp": "10.20.0.61"} {
		eip := &kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: "eip" + kind}, Spec: kubeovnv1.OvnEipSpec{ExternalSubnet: "shop", Type: kind}}
		n.Create(eip)
		n.Cleanup(func() { _ = n.Client.Delete(n.Context(), eip) })
		eip.Status = kubeovnv1.OvnEipStatus{V4IP: v4}
		n.Must(n.Client.Status().Update(n.Context(), eip))
	}
	port("10.20.0.50 10.20.0.60")
}
