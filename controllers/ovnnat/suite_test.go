// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovnnat_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/controllers/controllertest/networktest"
	"github.com/kiln-net/kiln/controllers/lbrule"
	"github.com/kiln-net/kiln/controllers/ovneip"
	"github.com/kiln-net/kiln/controllers/ovnnat"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

// world has the external subnets ext and ext2 on ProviderNetwork net1, for which n1 is ready, and VPC blue with subnet net and a port in ext.
type world struct {
	*controllertest.World

	process *controllertest.Process
	blue    *kubeovnv1.Vpc
	network *kubeovnv1.ProviderNetwork
	// maxPodRules is the bound of a namespace from the next run on; 0 for the product's.
	maxPodRules int
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{World: controllertest.New(t)}
	w.Nodes = nil
	w.run()
	w.network = &kubeovnv1.ProviderNetwork{ObjectMeta: metav1.ObjectMeta{Name: "net1"}, Spec: kubeovnv1.ProviderNetworkSpec{DefaultInterface: "eth1"}}
	w.Create(w.network)
	w.ready("n1")
	for i, name := range []string{"ext", "ext2"} {
		vlan := &kubeovnv1.Vlan{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.VlanSpec{ID: 30 + i, Provider: "net1"}}
		w.Create(vlan)
		base, tag := vlan.DeepCopy(), vlan.Tag()
		k8s.SetConditions(&vlan.Status.Conditions, vlan.Generation, k8s.Validated(nil))
		vlan.Status.ValidatedID = &tag
		w.Must(w.Client.Status().Patch(w.Context(), vlan, client.MergeFrom(base)))
		w.Create(&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.SubnetSpec{
			Vlan: name, CIDRBlock: fmt.Sprintf("192.0.%d.0/24,2001:db8:%d::/64", 2+i, 2+i), Gateway: fmt.Sprintf("192.0.%d.254,2001:db8:%d::fe", 2+i, 2+i),
		}})
	}
	w.blue = &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "blue"}, Spec: kubeovnv1.VpcSpec{ExtraExternalSubnets: []string{"ext"}}}
	w.Create(w.blue, &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "net"}, Spec: kubeovnv1.SubnetSpec{Vpc: "blue", CIDRBlock: "10.50.0.0/24,fd00:50::/112"}})
	return w
}

func (w *world) run() {
	w.Helper()
	var eips *ovneip.Reconciler
	w.process = w.Restart(w.process, controllertest.Steps{
		Setup: func(ctx context.Context, p *controllertest.Process) error {
			vpcs := networktest.Vpcs(p)
			eips = &ovneip.Reconciler{Client: p.Client, Allocator: p.Allocator, Networks: p.Networks, Recorder: p.Recorder, Gate: p.Gate}
			return p.Run(ctx, vpcs, networktest.Subnets(p, vpcs), networktest.External(p), eips,
				&ovnnat.Reconciler{
					Client: p.Client, Live: p.Live, Northbound: p.Engine, Allocator: p.Allocator, Networks: p.Networks, Grants: p.Grants, Sets: p.Sets, Recorder: p.Recorder, Gate: p.Gate,
					MaxPodRules: w.maxPodRules,
				},
				&lbrule.Reconciler{
					Client: p.Client, Live: p.Live, Northbound: p.Engine, Allocator: p.Allocator, Networks: p.Networks, Services: p.Services,
					Vips: p.Vips, Grants: p.Grants, Recorder: p.Recorder, Gate: p.Gate,
				})
		},
		Restore: func(ctx context.Context, p *controllertest.Process) error {
			if err := networktest.Restore(ctx, p, "10.16.0.0/16,fd00:10:16::/112", "100.64.0.0/16,fd00:100:64::/112"); err != nil {
				return err
			}
			return eips.Restore(ctx)
		},
	})
}

// ready sets the nodes that are ready for net1.
func (w *world) ready(nodes ...string) {
	w.Helper()
	w.Get(w.network)
	base := w.network.DeepCopy()
	w.network.Status.ReadyNodes, w.network.Status.Vlans = nodes, []string{"ext", "ext2"}
	w.Must(w.Client.Status().Patch(w.Context(), w.network, client.MergeFrom(base)))
}

// ip creates the IP object of a pod.
func (w *world) ip(pod, subnet, node, v4, v6 string) *kubeovnv1.IP {
	w.Helper()
	ip := &kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: pod + ".shop"}, Spec: kubeovnv1.IPSpec{
		PodName: pod, Namespace: "shop", Subnet: subnet, NodeName: node, V4IPAddress: v4, V6IPAddress: v6, MACAddress: "06:00:00:00:00:05",
	}}
	w.Create(ip)
	return ip
}

func (w *world) eip(name string, change ...func(*kubeovnv1.OvnEipSpec)) *kubeovnv1.OvnEip {
	w.Helper()
	eip := &kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.OvnEipSpec{ExternalSubnet: "ext"}}
	for _, f := range change {
		f(&eip.Spec)
	}
	w.Create(eip)
	return eip
}

func at(v4, v6 string) func(*kubeovnv1.OvnEipSpec) {
	return func(s *kubeovnv1.OvnEipSpec) { s.V4IP, s.V6IP = v4, v6 }
}

func (w *world) fip(name string, spec kubeovnv1.OvnFipSpec) *kubeovnv1.OvnFip {
	w.Helper()
	o := &kubeovnv1.OvnFip{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	w.Create(o)
	return o
}

func (w *world) snat(name string, spec kubeovnv1.OvnSnatRuleSpec) *kubeovnv1.OvnSnatRule {
	w.Helper()
	o := &kubeovnv1.OvnSnatRule{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	w.Create(o)
	return o
}

func (w *world) dnat(name string, spec kubeovnv1.OvnDnatRuleSpec) *kubeovnv1.OvnDnatRule {
	w.Helper()
	o := &kubeovnv1.OvnDnatRule{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	w.Create(o)
	return o
}

// waits waits until a rule is not ready, with these words.
func (w *world) waits(o client.Object, words ...string) {
	w.Helper()
	w.Says(o, kubeovnv1.ConditionReady, metav1.ConditionFalse, words...)
}

// nat waits until the translations are these, in the form `type external internal [port mac]`.
func (w *world) nat(want ...string) {
	w.Helper()
	w.Rows("NAT", func(row nbtest.Row) string {
		text := fmt.Sprint(row["type"], " ", row["external_ip"], " ", row["logical_ip"])
		if port := row.Strings("logical_port"); len(port) > 0 {
			text += " " + strings.Join(port, "") + " " + strings.Join(row.Strings("external_mac"), "")
		}
		return text
	}, want...)
}

// balancers waits until the load balancers of rules are these, in the form `name protocol vips`.
func (w *world) balancers(want ...string) {
	w.Helper()
	w.Rows("Load_Balancer", func(row nbtest.Row) string {
		return fmt.Sprint(row["name"], " ", strings.Join(row.Strings("protocol"), ""), " ", row["vips"])
	}, want...)
}

// policies waits until the policies of rules are these, in the form `priority match by next hop`.
func (w *world) policies(want ...string) {
	w.Helper()
	w.Rows("Logical_Router_Policy", func(row nbtest.Row) string {
		priority, err := strconv.Atoi(fmt.Sprint(row["priority"]))
		if err != nil || priority < 29119 || priority > 29250 {
			return ""
		}
		return fmt.Sprint(priority, " ", row["match"], " by ", strings.Join(row.Strings("nexthops"), ","))
	}, want...)
}
