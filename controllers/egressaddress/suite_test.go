// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package egressaddress_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/controllers/controllertest/networktest"
	"github.com/kiln-net/kiln/controllers/egressaddress"
	"github.com/kiln-net/kiln/controllers/ovneip"
	"github.com/kiln-net/kiln/controllers/ovnnat"
	"github.com/kiln-net/kiln/controllers/policy"
	"github.com/kiln-net/kiln/internal/gateway/gatewaytest"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

// world has the nodes n1 and n2 with the label gateway=yes, and n3 without. Namespaces team-a and team-b have the label team with their last letter.
type world struct {
	*controllertest.World

	process *controllertest.Process
	leases  *gatewaytest.Leases
	// speakers outlives restarts.
	speakers egressaddress.Speakers
	nodes    map[string]*corev1.Node
	// pods and join are the CIDRs of the default subnets.
	pods, join string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldWith(t, "10.16.0.0/16,fd00:10:16::/112", "100.64.0.0/16,fd00:100:64::/112")
}

func newWorldWith(t *testing.T, pods, join string) *world {
	t.Helper()
	w := &world{World: controllertest.New(t), nodes: map[string]*corev1.Node{}, pods: pods, join: join}
	w.Nodes = nil
	for _, team := range []string{"a", "b"} {
		w.namespace("team-"+team, team)
	}
	w.run()
	for name, labels := range map[string]map[string]string{"n1": {"gateway": "yes"}, "n2": {"gateway": "yes"}, "n3": nil} {
		o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
		w.Create(o)
		base := o.DeepCopy()
		o.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		o.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "172.30.0.1" + name[1:]}}
		w.Must(w.Client.Status().Patch(w.Context(), o, client.MergeFrom(base)))
		w.nodes[name] = o
	}
	for _, o := range w.nodes {
		w.Eventually(func() string {
			if w.Get(o); o.Annotations[kubeovnv1.AnnotationAllocated.Key()] != "true" {
				return "node " + o.Name + " is not connected"
			}
			return ""
		})
	}
	return w
}

// run starts the controllers. If they ran before, it restarts them as after a crash.
func (w *world) run() {
	w.Helper()
	w.leases = &gatewaytest.Leases{}
	var eips *ovneip.Reconciler
	var policies *policy.Reconciler
	var restore func(context.Context, *controllertest.Process) error
	w.process = w.Restart(w.process, controllertest.Steps{
		Setup: func(ctx context.Context, p *controllertest.Process) error {
			vpcs, pods := networktest.Vpcs(p), networktest.Pods(p)
			restore = func(ctx context.Context, p *controllertest.Process) error {
				return pods.Restore(ctx, p.Manager.GetAPIReader())
			}
			eips = &ovneip.Reconciler{Client: p.Client, Allocator: p.Allocator, Networks: p.Networks, Recorder: p.Recorder, Gate: p.Gate}
			policies = &policy.Reconciler{Client: p.Client, Northbound: p.Engine, Sets: p.Sets, Grants: p.Grants, Recorder: p.Recorder, Gate: p.Gate}
			return p.Run(ctx, vpcs, networktest.Subnets(p, vpcs), networktest.Nodes(p), pods, policies, eips, networktest.External(p),
				&ovnnat.Reconciler{
					Client: p.Client, Live: p.Live, Northbound: p.Engine, Allocator: p.Allocator, Networks: p.Networks, Grants: p.Grants, Sets: p.Sets, Recorder: p.Recorder, Gate: p.Gate,
				},
				&egressaddress.Reconciler{
					Client: p.Client, Northbound: p.Engine, Allocator: p.Allocator, Networks: p.Networks, Sets: p.Sets, Recorder: p.Recorder, Gate: p.Gate, Leases: w.leases,
					ServiceCIDRs: networktest.Services(p), CountPace: time.Second, Speakers: &w.speakers,
				})
		},
		Restore: func(ctx context.Context, p *controllertest.Process) error {
			return errors.Join(networktest.Restore(ctx, p, w.pods, w.join), eips.Restore(ctx), policies.Restore(ctx), restore(ctx, p))
		},
	})
}

func (w *world) namespace(name, team string) *corev1.Namespace {
	w.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	w.Must(client.IgnoreAlreadyExists(w.Client.Create(w.Context(), ns)))
	w.Get(ns)
	w.Change(ns, func() { ns.Labels = map[string]string{"team": team} })
	return ns
}

// pod creates a pod on n3 with the label app, and returns it once it is annotated.
func (w *world) pod(namespace, name, app string, change ...func(*corev1.Pod)) *corev1.Pod {
	w.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": app}, Annotations: map[string]string{}},
		Spec:       corev1.PodSpec{NodeName: "n3", Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
	for _, f := range change {
		f(p)
	}
	w.Create(p)
	w.Eventually(func() string {
		if w.Get(p); p.Annotations[kubeovnv1.AnnotationAllocated.Key()] != "true" {
			return fmt.Sprintf("pod %s has %v", p.Name, p.Annotations)
		}
		return ""
	})
	return p
}

func (w *world) label(p *corev1.Pod, app string) {
	w.Helper()
	w.Get(p)
	w.Change(p, func() { p.Labels["app"] = app })
}

func addresses(p *corev1.Pod) []string {
	return strings.Split(p.Annotations[kubeovnv1.AnnotationIPAddress.Key()], ",")
}

// onNodes returns an EgressAddress for the pods with app: web in namespaces of a team, with addresses on gateway nodes.
func onNodes(name, team string, addresses ...string) *kubeovnv1.EgressAddress {
	return &kubeovnv1.EgressAddress{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.EgressAddressSpec{
		NamespaceSelector: metav1.LabelSelector{MatchLabels: map[string]string{"team": team}}, PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		Addresses: addresses, NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"gateway": "yes"}},
	}}
}

// has waits until the address sets of an EgressAddress have the addresses of these pods, in both families.
func (w *world) has(name string, pods ...*corev1.Pod) {
	w.Helper()
	w.Eventually(func() string { return w.lacks(name, pods...) })
}

// lacks returns a text unless the address sets of an EgressAddress have the addresses of these pods, in both families.
func (w *world) lacks(name string, pods ...*corev1.Pod) string {
	w.Helper()
	var want, got []string
	for _, p := range pods {
		want = append(want, addresses(p)...)
	}
	for _, row := range w.Database.Rows("Address_Set") {
		ids, _ := row["external_ids"].(map[string]string)
		if strings.HasSuffix(ids["selector"], " for EgressAddress "+name) {
			got = append(got, row.Strings("addresses")...)
		}
	}
	slices.Sort(want)
	if slices.Sort(got); !slices.Equal(got, want) {
		return fmt.Sprintf("EgressAddress %s has %v, want %v", name, got, want)
	}
	return ""
}

// routers waits until the routers of EgressAddresses are these, in the form `<name> on <node>`.
func (w *world) routers(want ...string) {
	w.Helper()
	w.Rows("Logical_Router", func(row nbtest.Row) string {
		name, _, is := strings.Cut(fmt.Sprint(row["name"]), "_egress-")
		if options, _ := row["options"].(map[string]string); is {
			return name + " on " + options["chassis"]
		}
		return ""
	}, want...)
}

// actions waits until the policies for pods of EgressAddresses have these actions.
func (w *world) actions(want ...string) {
	w.Helper()
	slices.Sort(want)
	w.Rows("Logical_Router_Policy", func(row nbtest.Row) string {
		if fmt.Sprint(row["priority"]) != "29118" {
			return ""
		}
		return fmt.Sprint(row["action"])
	}, want...)
}

// count waits until status.pods of an EgressAddress is a number.
func (w *world) count(e *kubeovnv1.EgressAddress, want int32) {
	w.Helper()
	w.Eventually(func() string {
		if w.Get(e); e.Status.Pods != want {
			return fmt.Sprintf("EgressAddress %s has %d pods, want %d", e.Name, e.Status.Pods, want)
		}
		return ""
	})
}

// external creates ProviderNetwork net1 with the external subnet ext, and VPC blue with the subnet net and a port in ext.
func (w *world) external() {
	w.Helper()
	network := &kubeovnv1.ProviderNetwork{ObjectMeta: metav1.ObjectMeta{Name: "net1"}, Spec: kubeovnv1.ProviderNetworkSpec{DefaultInterface: "eth1"}}
	w.Create(network)
	base := network.DeepCopy()
	network.Status.ReadyNodes, network.Status.Vlans = []string{"n1"}, []string{"ext"}
	w.Must(w.Client.Status().Patch(w.Context(), network, client.MergeFrom(base)))
	vlan := &kubeovnv1.Vlan{ObjectMeta: metav1.ObjectMeta{Name: "ext"}, Spec: kubeovnv1.VlanSpec{ID: 30, Provider: "net1"}}
	w.Create(vlan)
	before, tag := vlan.DeepCopy(), vlan.Tag()
	k8s.SetConditions(&vlan.Status.Conditions, vlan.Generation, k8s.Validated(nil))
	vlan.Status.ValidatedID = &tag
	w.Must(w.Client.Status().Patch(w.Context(), vlan, client.MergeFrom(before)))
	w.Create(
		&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "ext"}, Spec: kubeovnv1.SubnetSpec{
			Vlan: "ext", CIDRBlock: "192.0.2.0/24,2001:db8:2::/64", Gateway: "192.0.2.254,2001:db8:2::fe", ExcludeIPs: []string{"192.0.2.200..192.0.2.254"},
		}},
		&kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "blue"}, Spec: kubeovnv1.VpcSpec{ExtraExternalSubnets: []string{"ext"}, Namespaces: []string{"team-a", "team-b"}}},
		&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "net"}, Spec: kubeovnv1.SubnetSpec{Vpc: "blue", CIDRBlock: "10.50.0.0/24,fd00:50::/112"}},
	)
}

// inNet puts a pod into the subnet net.
func inNet(p *corev1.Pod) { p.Annotations[kubeovnv1.AnnotationLogicalSwitch.Key()] = "net" }

func byEip(name, team, eip string) *kubeovnv1.EgressAddress {
	e := onNodes(name, team)
	e.Spec.Vpc, e.Spec.Addresses, e.Spec.NodeSelector, e.Spec.OvnEip = "blue", nil, nil, eip
	return e
}

// sources waits until the sources that OVN translates are these, in the form `external internal`.
func (w *world) sources(want ...string) {
	w.Helper()
	slices.Sort(want)
	w.Rows("NAT", func(row nbtest.Row) string {
		if strings.HasSuffix(fmt.Sprint(row["logical_ip"]), "/0") {
			return "" // of a router on a node
		}
		return fmt.Sprint(row["external_ip"], " ", row["logical_ip"])
	}, want...)
}
