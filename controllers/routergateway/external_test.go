// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package routergateway_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/controllers/controllertest/networktest"
	"github.com/kiln-net/kiln/controllers/ovneip"
	"github.com/kiln-net/kiln/controllers/routergateway"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

type world struct {
	*controllertest.World

	process  *controllertest.Process
	settings *routergateway.Settings
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{World: controllertest.New(t)}
	w.Nodes = nil
	w.run()
	return w
}

func (w *world) run() {
	w.Helper()
	var eips *ovneip.Reconciler
	w.process = w.Restart(w.process, controllertest.Steps{
		Setup: func(ctx context.Context, p *controllertest.Process) error {
			vpcs := networktest.Vpcs(p)
			eips = &ovneip.Reconciler{Client: p.Client, Allocator: p.Allocator, Networks: p.Networks, Recorder: p.Recorder, Gate: p.Gate}
			external := networktest.External(p)
			w.settings = external.Settings
			return p.Run(ctx, vpcs, networktest.Subnets(p, vpcs), external, eips)
		},
		Restore: func(ctx context.Context, p *controllertest.Process) error {
			if err := networktest.Restore(ctx, p, "10.16.0.0/16,fd00:10:16::/112", "100.64.0.0/16,fd00:100:64::/112"); err != nil {
				return err
			}
			return eips.Restore(ctx)
		},
	})
}

// provider creates ProviderNetwork net1 with Vlans, or sets its ready nodes.
func (w *world) provider(ready ...string) {
	w.Helper()
	p := &kubeovnv1.ProviderNetwork{ObjectMeta: metav1.ObjectMeta{Name: "net1"}, Spec: kubeovnv1.ProviderNetworkSpec{DefaultInterface: "eth1"}}
	if !w.Get(p) {
		w.Create(p)
	}
	base := p.DeepCopy()
	p.Status.ReadyNodes, p.Status.Vlans = ready, []string{"external", "ext2"}
	w.Must(w.Client.Status().Patch(w.Context(), p, client.MergeFrom(base)))
}

func (w *world) external(name string, id int, cidr, gateway string) *kubeovnv1.Subnet {
	w.Helper()
	vlan := &kubeovnv1.Vlan{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.VlanSpec{ID: id, Provider: "net1"}}
	w.Create(vlan)
	base, tag := vlan.DeepCopy(), vlan.Tag()
	k8s.SetConditions(&vlan.Status.Conditions, vlan.Generation, k8s.Validated(nil))
	vlan.Status.ValidatedID = &tag
	w.Must(w.Client.Status().Patch(w.Context(), vlan, client.MergeFrom(base)))
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.SubnetSpec{Vlan: name, CIDRBlock: cidr, Gateway: gateway}}
	w.Create(s)
	return s
}

func (w *world) vpc(name string, change func(*kubeovnv1.VpcSpec)) *kubeovnv1.Vpc {
	w.Helper()
	v := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: name}}
	change(&v.Spec)
	w.Create(v)
	return v
}

// says waits for a status of the condition ExternalReady.
func (w *world) says(v *kubeovnv1.Vpc, status metav1.ConditionStatus, words ...string) {
	w.Helper()
	w.Says(v, kubeovnv1.ConditionExternalReady, status, words...)
}

// ports waits until the external ports are these, in the form `name networks`.
func (w *world) ports(want ...string) {
	w.Helper()
	w.Rows("Logical_Router_Port", func(row nbtest.Row) string {
		if !strings.HasPrefix(row["external_ids"].(map[string]string)["kiln-owner"], "External/") {
			return ""
		}
		return fmt.Sprint(row["name"], " ", strings.Join(row.Strings("networks"), ","))
	}, want...)
}

// routes waits until the default routes of a VPC's external ports are these.
func (w *world) routes(want ...string) {
	w.Helper()
	w.Rows("Logical_Router_Static_Route", func(row nbtest.Row) string {
		if !strings.HasPrefix(row["external_ids"].(map[string]string)["kiln-owner"], "External/") || !strings.HasSuffix(fmt.Sprint(row["ip_prefix"]), "/0") {
			return ""
		}
		return fmt.Sprint(row["ip_prefix"], " by ", row["nexthop"])
	}, want...)
}

func TestTheRouterHasAPortInTheExternalSubnet(t *testing.T) {
	w := newWorld(t)
	blue := w.vpc("blue", func(s *kubeovnv1.VpcSpec) { s.EnableExternal = true })
	w.says(blue, metav1.ConditionFalse, "subnet external does not exist")
	w.external("external", 30, "192.0.2.0/24,2001:db8:2::/64", "192.0.2.254,2001:db8:2::fe")
	w.says(blue, metav1.ConditionFalse, "no node of ProviderNetwork net1 is ready")
	w.provider("n1", "n2")
	w.says(blue, metav1.ConditionTrue, "the router has 192.0.2.1,2001:db8:2::1 in subnet external", "default route of IPv4", "default route of IPv6")
	w.ports("blue-external 192.0.2.1/24,2001:db8:2::1/64")
	w.routes("0.0.0.0/0 by 192.0.2.254", "::/0 by 2001:db8:2::fe")
	w.Rows("Gateway_Chassis", func(row nbtest.Row) string { return fmt.Sprint(row["chassis_name"]) }, "n1", "n2")
	w.Measures(2, "kiln_external_port_nodes", "vpc", "blue", "subnet_name", "external")
	if w.Get(blue); !blue.Status.EnableExternal || len(blue.Status.ExtraExternalSubnets) != 0 {
		t.Errorf("the status is %+v", blue.Status)
	}
	eip := &kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: "blue-external"}}
	w.Ready(eip)
	if eip.Status.V4IP != "192.0.2.1" || eip.Status.Type != "lrp" {
		t.Errorf("the OvnEip is %+v", eip.Status)
	}
	w.provider() // the port stays
	w.says(blue, metav1.ConditionFalse, "no node of ProviderNetwork net1 is ready", "the router has 192.0.2.1")
	w.ports("blue-external 192.0.2.1/24,2001:db8:2::1/64")
	w.Measures(0, "kiln_external_port_nodes", "vpc", "blue", "subnet_name", "external")
	w.provider("n1")
	w.says(blue, metav1.ConditionTrue)
	w.run()
	w.says(blue, metav1.ConditionTrue)
	w.RestoresRows("External//blue")

	// The VPC's own default route replaces the generated one.
	w.Get(blue)
	w.Change(blue, func() {
		blue.Spec.StaticRoutes = []*kubeovnv1.StaticRoute{{CIDR: "0.0.0.0/0", NextHopIP: "192.0.2.253"}}
	})
	w.routes("::/0 by 2001:db8:2::fe")
	w.Ready(blue) // the next hop is in an external subnet

	w.Delete(eip) // it stays while the router has its addresses
	w.Says(eip, kubeovnv1.ConditionReady, metav1.ConditionFalse, "no longer used by VPC blue")
	w.Get(blue)
	w.Change(blue, func() { blue.Spec.EnableExternal, blue.Spec.StaticRoutes = false, nil })
	w.ports()
	w.Gone(eip)
	w.Eventually(func() string {
		if w.Get(blue); blue.Status.EnableExternal {
			return "status.enableExternal is true"
		}
		if _, there := w.Metric("kiln_external_port_nodes", "vpc", "blue", "subnet_name", "external"); there {
			return "the metric has a series"
		}
		return ""
	})
}

func TestSeveralExternalSubnets(t *testing.T) {
	w := newWorld(t)
	w.provider("n1")
	w.external("external", 30, "192.0.2.0/24", "192.0.2.254")
	w.external("ext2", 31, "192.0.3.0/24,2001:db8:3::/64", "192.0.3.254,2001:db8:3::fe")
	w.Create(&kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: "red-ext2"}, Spec: kubeovnv1.OvnEipSpec{
		ExternalSubnet: "ext2", Type: "lrp", V4IP: "192.0.3.77", V6IP: "2001:db8:3::77",
	}})
	red := w.vpc("red", func(s *kubeovnv1.VpcSpec) { s.ExtraExternalSubnets = []string{"external", "ext2", "nowhere", "ext2"} })
	w.says(red, metav1.ConditionFalse, "subnet nowhere does not exist", "192.0.2.1 in subnet external", "192.0.3.77,2001:db8:3::77 in subnet ext2")
	w.ports("red-ext2 192.0.3.77/24,2001:db8:3::77/64", "red-external 192.0.2.1/24")
	w.routes("0.0.0.0/0 by 192.0.2.254", "::/0 by 2001:db8:3::fe")
	w.Get(red)
	w.Change(red, func() { red.Spec.ExtraExternalSubnets = []string{"ext2"} })
	w.says(red, metav1.ConditionTrue)
	w.ports("red-ext2 192.0.3.77/24,2001:db8:3::77/64")
	w.Gone(&kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: "red-external"}})

	vpc := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "ovn-cluster"}}
	w.Get(vpc)
	w.Change(vpc, func() { vpc.Spec.EnableExternal = true })
	w.ports("ovn-cluster-external 192.0.2.2/24", "red-ext2 192.0.3.77/24,2001:db8:3::77/64")
	w.routes("0.0.0.0/0 by 192.0.3.254", "::/0 by 2001:db8:3::fe") // in the default VPC rules write policies
	w.Delete(red)
	w.ports("ovn-cluster-external 192.0.2.2/24")
}

func TestSubnetsThatAreNotExternal(t *testing.T) {
	w := newWorld(t)
	w.provider("n1")
	logical := w.external("ext2", 31, "192.0.3.0/24", "192.0.3.254")
	w.Change(logical, func() { logical.Spec.LogicalGateway = true })
	w.Create(&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "overlay"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.60.0.0/24"}})
	red := w.vpc("red", func(s *kubeovnv1.VpcSpec) { s.ExtraExternalSubnets = []string{"overlay", "ext2"} })
	w.says(red, metav1.ConditionFalse, "subnet overlay is no underlay subnet", "unset logicalGateway")
	w.external("external", 30, "192.0.2.0/24", "192.0.2.254")
	w.Create(&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "inside"}, Spec: kubeovnv1.SubnetSpec{Vpc: "red", CIDRBlock: "192.0.2.128/25"}})
	w.Ready(&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "inside"}})
	w.Get(red)
	w.Change(red, func() { red.Spec.ExtraExternalSubnets = []string{"external"} })
	w.says(red, metav1.ConditionFalse, "subnet external overlaps with subnet inside of VPC red")
	w.ports()
}

// TestANodeThatWasAbsentIsTheLastHost has a node that has not ended connections of an address that has another owner since.
func TestANodeThatWasAbsentIsTheLastHost(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"n1", "n2"} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		w.Create(node)
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		w.Must(w.Client.Status().Update(w.Context(), node))
	}
	w.external("external", 30, "192.0.2.0/24", "192.0.2.254")
	w.provider("n1", "n2")
	blue := w.vpc("blue", func(s *kubeovnv1.VpcSpec) { s.EnableExternal = true })
	w.says(blue, metav1.ConditionTrue)
	hosts := func(first, second string) {
		t.Helper()
		w.Rows("Gateway_Chassis", func(row nbtest.Row) string { return fmt.Sprintf("%03v %v", row["priority"], row["chassis_name"]) }, "001 "+second, "002 "+first)
	}
	first, second := "n1", "n2" // the order of VPC blue
	hosts(first, second)
	eip := &kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
	w.Create(eip)
	w.Ready(eip)
	base := eip.DeepCopy()
	eip.Status.Releasing = map[string]kubeovnv1.OvnEipRelease{"a": {
		Rule: "OvnFip a", VPC: "red", Address: "192.0.2.9", Internal: "10.50.0.5/32", Absent: []string{first}, Since: metav1.Now(),
	}}
	w.Must(w.Client.Status().Patch(w.Context(), eip, client.MergeFrom(base)))
	hosts(second, first)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: first}}
	w.Get(node)
	w.Change(node, func() { node.Annotations = map[string]string{kubeovnv1.AnnotationFlushed.Key(): "a"} })
	hosts(first, second)
}
