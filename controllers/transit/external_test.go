// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package transit_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
)

// outside waits until the default routes of the external ports are these.
func (c *cluster) outside(want ...string) {
	c.Helper()
	c.Rows("Logical_Router_Static_Route", func(row nbtest.Row) string {
		if !strings.HasPrefix(row["external_ids"].(map[string]string)["kiln-owner"], "External/") {
			return ""
		}
		return fmt.Sprint(row["ip_prefix"], " by ", row["nexthop"])
	}, want...)
}

// An external port takes over the default route of its family from the gateway router, and gives it back. At no time a router has both: they would share
// the traffic.
func TestTheDefaultRouteMovesToTheExternalPort(t *testing.T) {
	c := start(t, "100.64.0.0/16,fd00:100:64::/112", "n1")
	network := &kubeovnv1.ProviderNetwork{ObjectMeta: metav1.ObjectMeta{Name: "net1"}, Spec: kubeovnv1.ProviderNetworkSpec{DefaultInterface: "eth1"}}
	vlan := &kubeovnv1.Vlan{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: kubeovnv1.VlanSpec{ID: 30, Provider: "net1"}}
	c.Create(network, vlan)
	base, tag := network.DeepCopy(), vlan.Tag()
	network.Status.ReadyNodes, network.Status.Vlans = []string{"n1"}, []string{"v"}
	c.Must(c.Client.Status().Patch(c.Context(), network, client.MergeFrom(base)))
	before := vlan.DeepCopy()
	k8s.SetConditions(&vlan.Status.Conditions, vlan.Generation, k8s.Validated(nil))
	vlan.Status.ValidatedID = &tag
	c.Must(c.Client.Status().Patch(c.Context(), vlan, client.MergeFrom(before)))
	c.Create(&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "external"}, Spec: kubeovnv1.SubnetSpec{Vlan: "v", CIDRBlock: "192.0.2.0/24", Gateway: "192.0.2.254"}})

	blue := c.vpc("blue", "10.50.0.0/24,fd00:50::/112", true, nil)
	services := []string{"10.96.0.0/12", "fd00:10:96::/108"}
	routes := func(defaults ...string) {
		c.routesOf("blue", slices.Sorted(slices.Values(slices.Concat(services, defaults)))...)
	}
	routes("0.0.0.0/0", "::/0")
	c.Get(blue)
	c.Change(blue, func() { blue.Spec.EnableExternal = true })
	c.outside("0.0.0.0/0 by 192.0.2.254")
	routes("::/0")
	c.says(blue, metav1.ConditionTrue, "IPv4 leaves through an external port, except to Services")
	c.Says(blue, kubeovnv1.ConditionExternalReady, metav1.ConditionTrue, "the default route of IPv4 leads through an external port")
	c.run()
	c.says(blue, metav1.ConditionTrue, "IPv4 leaves through an external port")
	c.outside("0.0.0.0/0 by 192.0.2.254")
	routes("::/0")

	c.Get(blue)
	c.Change(blue, func() { blue.Spec.EnableExternal = false })
	c.outside()
	routes("0.0.0.0/0", "::/0")

	c.Get(blue)
	c.Change(blue, func() { blue.Spec.ClusterAccess, blue.Spec.EnableExternal = kubeovnv1.ClusterAccessNone, true })
	c.outside("0.0.0.0/0 by 192.0.2.254")
}
