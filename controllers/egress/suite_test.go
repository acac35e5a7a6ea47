// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package egress_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/controllers/egress"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/gateway"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/testing/eventually"
)

// leases is the namespace of the Leases of gateway nodes.
const leases = "kube-system"

func TestMain(m *testing.M) {
	controllertest.Main(m, eventually.Allowed{
		"TestALeaseThatRunsOutMovesTheGateway":  {Why: "a Lease runs out after gateway.Tolerance, 8 s", Base: 15 * time.Second},
		"TestAGatewayDiesBeforeItsFirstRenewal": {Why: "a Lease that does not come is awaited for gateway.RestartTolerance, 20 s", Base: 30 * time.Second},
	})
}

// network is a test environment in which the gateway controller runs.
type network struct {
	*controllertest.World
	process *controllertest.Process
	// beforePatch is called before the controller patches a status, if it is not nil.
	beforePatch func()
	// leased are the addresses of nodes on the join subnet.
	leased map[string][]netip.Addr
}

// patcher is a client that calls a function before it patches a status.
type patcher struct {
	client.Client
	before func()
}

func (p patcher) Status() client.SubResourceWriter { return statusPatcher{p.Client.Status(), p.before} }

type statusPatcher struct {
	client.SubResourceWriter
	before func()
}

func (p statusPatcher) Patch(ctx context.Context, o client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
	p.before()
	return p.SubResourceWriter.Patch(ctx, o, patch, options...)
}

// start returns a network with ready and connected nodes: node n<i> has 100.64.0.<i> and fd00:100:64::<i>.
func start(t *testing.T, nodes ...string) *network {
	t.Helper()
	n := prepare(t, nodes...)
	n.run()
	return n
}

// prepare is start without the controller.
func prepare(t *testing.T, nodes ...string) *network {
	t.Helper()
	n := &network{World: controllertest.New(t), leased: map[string][]netip.Addr{}}
	n.Must(n.Client.DeleteAllOf(n.Context(), &coordinationv1.Lease{}, client.InNamespace(leases)))
	for _, name := range nodes {
		n.node(name)
	}
	return n
}

// run starts the controller. If it ran before, it restarts it as after a crash.
func (n *network) run() {
	n.Helper()
	n.process = n.Restart(n.process, controllertest.Steps{Setup: func(ctx context.Context, p *controllertest.Process) error {
		n.Must(p.Allocator.SetSubnet(kubeovnv1.JoinSubnet, ipam.Subnet{
			CIDRs: []netip.Prefix{netip.MustParsePrefix("100.64.0.0/16"), netip.MustParsePrefix("fd00:100:64::/112")},
		}))
		for name, addresses := range n.leased {
			_, err := p.Allocator.Allocate(kubeovnv1.NodePortName(name), ipam.Request{Subnet: kubeovnv1.JoinSubnet, Addresses: addresses})
			n.Must(err)
		}
		clients, err := kubernetes.NewForConfig(controllertest.Config())
		n.Must(err)
		pulses, err := egress.NewLeaseStates(clients.CoordinationV1().RESTClient(), leases)
		n.Must(err)
		r := &egress.Reconciler{
			Client: p.Client, Northbound: p.Engine, Allocator: p.Allocator, Recorder: p.Recorder, Gate: p.Gate, Leases: pulses,
		}
		if n.beforePatch != nil {
			r.Client = patcher{p.Client, n.beforePatch}
		}
		return r.SetupWithManager(ctx, p.Manager)
	}})
}

func (n *network) node(name string) *corev1.Node {
	n.Helper()
	number := strings.TrimPrefix(name, "n")
	network := kubeovnv1.PodNetwork{
		Allocated: true, LogicalSwitch: "join", MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1},
		Addresses: []netip.Addr{netip.MustParseAddr("100.64.0." + number), netip.MustParseAddr("fd00:100:64::" + number)},
	}
	n.leased[name] = network.Addresses
	n.lease(name)
	o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: network.Annotations()}}
	n.Create(o)
	n.ready(o, corev1.ConditionTrue)
	return o
}

// lease gives a node its addresses on the join subnet, as the controller of nodes does.
func (n *network) lease(name string) {
	n.Helper()
	if n.process == nil {
		return // run does it
	}
	_, err := n.process.Allocator.Allocate(kubeovnv1.NodePortName(name), ipam.Request{Subnet: kubeovnv1.JoinSubnet, Addresses: n.leased[name]})
	n.Must(err)
}

// ready sets the condition Ready of a node.
func (n *network) ready(o *corev1.Node, status corev1.ConditionStatus) {
	n.Helper()
	base := o.DeepCopy()
	o.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
	n.Must(n.Client.Status().Patch(n.Context(), o, client.MergeFrom(base)))
}

// centralized creates a subnet with a centralized gateway.
func (n *network) centralized(name, cidrs, nodes string, change func(*kubeovnv1.SubnetSpec)) *kubeovnv1.Subnet {
	n.Helper()
	return n.Subnet(name, func(s *kubeovnv1.SubnetSpec) {
		s.CIDRBlock, s.GatewayType, s.GatewayNode = cidrs, kubeovnv1.GatewayCentralized, nodes
		if change != nil {
			change(s)
		}
	}, n.process)
}

// change changes a subnet's spec and marks it as validated.
func (n *network) change(s *kubeovnv1.Subnet, f func(*kubeovnv1.SubnetSpec)) {
	n.Helper()
	n.Get(s)
	n.Change(s, func() { f(&s.Spec) })
	n.Eventually(func() string { // the controller writes the status, too
		n.Get(s)
		apimeta.SetStatusCondition(&s.Status.Conditions, metav1.Condition{
			Type: kubeovnv1.ConditionValidated, Status: metav1.ConditionTrue, Reason: kubeovnv1.ReasonValid, ObservedGeneration: s.Generation,
		})
		s.Status.ValidatedSpec = s.Spec.DeepCopy()
		if err := n.Client.Status().Update(n.Context(), s); err != nil {
			return err.Error()
		}
		return ""
	})
}

// policies waits until the policies of centralized gateways are these, sorted.
func (n *network) policies(want ...string) {
	n.Helper()
	n.Rows("Logical_Router_Policy", func(row nbtest.Row) string {
		if fmt.Sprint(row["priority"]) != "29010" {
			return ""
		}
		hops := row.Strings("nexthops")
		slices.Sort(hops)
		return strings.TrimSpace(fmt.Sprint(row["match"], " ", row["action"], " ", strings.Join(hops, ",")))
	}, want...)
}

// status waits until a subnet's status lists these nodes, and its condition has this reason.
func (n *network) status(subnet, active, reason string) {
	n.Helper()
	n.Eventually(func() string {
		s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: subnet}}
		n.Get(s)
		c := apimeta.FindStatusCondition(s.Status.Conditions, kubeovnv1.ConditionGatewayReady)
		if s.Status.ActivateGateway != active || (c == nil) != (reason == "") || c != nil && c.Reason != reason {
			return fmt.Sprintf("subnet %s: active %q, condition %+v, want %q, %s", subnet, s.Status.ActivateGateway, c, active, reason)
		}
		return ""
	})
}

// renew renews the Lease of a node until the test ends, or stop is called, as the node's agent does.
func (n *network) renew(node string) (stop func()) {
	n.Helper()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: leases, Name: gateway.LeasePrefix + node, Labels: map[string]string{gateway.LeaseLabel: ""},
	}}
	lease.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
	n.Create(lease)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(gateway.RenewEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case now := <-tick.C:
				base := lease.DeepCopy()
				lease.Spec.RenewTime = &metav1.MicroTime{Time: now}
				if err := n.Client.Patch(ctx, lease, client.MergeFrom(base)); err != nil && ctx.Err() == nil {
					n.Errorf("renew the Lease of %s: %v", node, err)
				}
			}
		}
	}()
	stop = func() { cancel(); <-done }
	n.Cleanup(stop)
	return stop
}
