// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package vpc_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/validation"
)

// links returns a router port that has a peer as text, and "" for other ports.
func links(row nbtest.Row) string {
	peer, _ := row["peer"].(string)
	if peer == "" {
		return ""
	}
	return fmt.Sprint(row["name"], " with ", peer, " ", row.Strings("networks"))
}

func TestPeering(t *testing.T) {
	n := start(t)
	a := n.newVpc("a", peering("b", "169.254.0.1/30,fd00:254::1/126"))
	n.Says(a, kubeovnv1.ConditionReady, metav1.ConditionFalse, validation.ReasonPeerMissing, "VPC b does not exist", "whose remoteVpc is a")
	b := n.newVpc("b", nil)
	n.Says(a, kubeovnv1.ConditionReady, metav1.ConditionFalse, validation.ReasonPeerMissing, "VPC b has no peering with this one")
	n.Rows("Logical_Router_Port", links)

	n.Get(b)
	n.Change(b, func() { peering("a", "169.254.0.5/30,fd00:254::2/126")(&b.Spec) })
	for vpc, remote := range map[*kubeovnv1.Vpc]string{a: "b", b: "a"} {
		n.Says(vpc, kubeovnv1.ConditionValidated, metav1.ConditionFalse, validation.ReasonPeeringInvalid, "VPC "+remote+"'s", "two networks")
	}
	n.Change(b, func() { b.Spec.VpcPeerings[0].LocalConnectIP = "169.254.0.2/30,fd00:254::2/126" })
	n.Ready(a, b)
	both := []string{
		"a-b with b-a [169.254.0.1/30 fd00:254::1/126]", "b-a with a-b [169.254.0.2/30 fd00:254::2/126]",
	}
	n.Rows("Logical_Router_Port", links, both...)
	if !slices.Equal(a.Status.VpcPeerings, []string{"b"}) || !slices.Equal(b.Status.VpcPeerings, []string{"a"}) {
		t.Errorf("linked VPCs are %v and %v", a.Status.VpcPeerings, b.Status.VpcPeerings)
	}
	n.Change(a, func() {
		a.Spec.StaticRoutes = []*kubeovnv1.StaticRoute{{CIDR: "10.2.0.0/16", NextHopIP: "169.254.0.2"}}
	})
	n.Ready(a)

	overlapping := n.newSubnet("late", "a", "169.253.0.0/16")
	n.Ready(overlapping)
	n.Change(overlapping, func() {
		overlapping.Spec.CIDRBlock, overlapping.Spec.Gateway, overlapping.Spec.ExcludeIPs = "fd00:254::/64", "fd00:254::9", nil
	})
	n.Says(overlapping, kubeovnv1.ConditionValidated, metav1.ConditionFalse, validation.ReasonCIDRConflict, "fd00:254::/126", "VPC b")
	n.Ready(a)
	n.Rows("Logical_Router_Port", links, both...)

	n.Delete(b)
	n.Gone(b)
	n.Says(a, kubeovnv1.ConditionReady, metav1.ConditionFalse, "VPC b does not exist", "next hop 169.254.0.2")
	n.Rows("Logical_Router_Port", links)
	n.Ready(overlapping)
	n.Eventually(func() string {
		if n.Get(a); len(a.Status.VpcPeerings) > 0 {
			return fmt.Sprintf("linked VPCs are %v", a.Status.VpcPeerings)
		}
		return ""
	})
	n.newVpc("b", peering("a", "169.254.0.2/30,fd00:254::2/126"))
	n.Says(a, kubeovnv1.ConditionValidated, metav1.ConditionFalse, validation.ReasonPeeringInvalid, "of subnet late in the same VPC")
	n.Delete(overlapping)
	n.Ready(a, b)
	n.Rows("Logical_Router_Port", links, both...)
}

func TestALinkOutlivesRestartsAndDamage(t *testing.T) {
	n := start(t)
	a := n.newVpc("a-b", peering("c", "169.254.0.1/30"))
	n.newVpc("c", peering("a-b", "169.254.0.2/30"))
	n.Ready(a)
	n.later(a)
	x := n.newVpc("a", peering("b-c", "169.254.0.1/30"))
	y := n.newVpc("b-c", peering("a", "169.254.0.2/30"))
	n.Ready(x, y)
	names := func(row nbtest.Row) string {
		name, _, hashed := strings.Cut(fmt.Sprint(row["name"]), "_")
		peer, _, peerHashed := strings.Cut(fmt.Sprint(row["peer"]), "_")
		if links(row) == "" {
			return ""
		}
		return fmt.Sprint(name, " ", hashed, " ", peer, " ", peerHashed)
	}
	want := []string{"a-b-c false c-a-b false", "a-b-c true b-c-a false", "b-c-a false a-b-c true", "c-a-b false a-b-c false"}
	n.Rows("Logical_Router_Port", names, want...)

	before := n.Database.Dump("Logical_Router_Port")
	n.process.Stop()
	for uuid, row := range n.Database.Rows("Logical_Router_Port") {
		if links(row) != "" {
			n.Database.Transact(nbtest.Op{
				"op": "update", "table": "Logical_Router_Port", "where": nbtest.Where("_uuid", "==", nbtest.UUID(uuid)), "row": nbtest.Op{"networks": "192.0.2.1/24"},
			})
		}
	}
	n.run()
	n.Eventually(func() string { return cmp.Diff(before, n.Database.Dump("Logical_Router_Port")) })
}
