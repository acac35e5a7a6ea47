// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package transit_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/controllers/node"
	"github.com/kiln-net/kiln/controllers/pod"
	"github.com/kiln-net/kiln/controllers/subnet"
	"github.com/kiln-net/kiln/controllers/transit"
	"github.com/kiln-net/kiln/controllers/vpc"
	"github.com/kiln-net/kiln/internal/gateway"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

// leases are the pulses of nodes, as a test sets them.
type leases struct {
	mu          sync.Mutex
	pulses      map[string]gateway.Pulse
	expected    map[string]bool
	subscribers []func(string)
}

func (l *leases) Of(node string) gateway.Pulse {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pulses[node]
}

func (l *leases) Expect(node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expected[node] = true
}

func (l *leases) Subscribe(f func(string)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.subscribers = append(l.subscribers, f)
}

func (l *leases) set(node string, pulse gateway.Pulse) {
	l.mu.Lock()
	l.pulses[node] = pulse
	told := slices.Clone(l.subscribers)
	l.mu.Unlock()
	for _, f := range told {
		f(node)
	}
}

// cluster is a world with the controllers of VPCs, subnets, nodes and ways out at work.
type cluster struct {
	*controllertest.World
	process *controllertest.Process
	leases  *leases
	join    string
}

// start returns a cluster with nodes that are ready and connected.
func start(t *testing.T, join string, nodes ...string) *cluster {
	t.Helper()
	c := &cluster{World: controllertest.New(t), join: join}
	c.Nodes = nil
	c.wipe()
	t.Cleanup(c.wipe)
	c.run()
	for _, name := range nodes {
		c.node(name)
	}
	return c
}

// run starts the controllers, as after a crash when they ran before.
func (c *cluster) run() {
	c.Helper()
	if c.process != nil {
		c.process.Stop()
	}
	c.leases = &leases{pulses: map[string]gateway.Pulse{}, expected: map[string]bool{}}
	c.process = c.Start(controllertest.Steps{
		Setup: func(ctx context.Context, p *controllertest.Process) error {
			k, events := p.Manager.GetClient(), p.Manager.GetEventRecorder("test")
			vpcs := &vpc.Reconciler{Client: k, Northbound: p.Engine, Networks: p.Networks, Namespaces: p.Namespaces, Recorder: events, Gate: p.Gate}
			for _, r := range []interface {
				SetupWithManager(context.Context, ctrl.Manager) error
			}{
				vpcs,
				&subnet.Reconciler{
					Client: k, Northbound: p.Engine, Allocator: p.Allocator, Networks: p.Networks, Recorder: events, Gate: p.Gate, Detached: vpcs.Detached,
				},
				&node.Reconciler{Client: k, Northbound: p.Engine, Allocator: p.Allocator, Recorder: events, Gate: p.Gate},
				&transit.Reconciler{
					Client: k, Northbound: p.Engine, Allocator: p.Allocator, Networks: p.Networks, Recorder: events, Gate: p.Gate, Pulses: c.leases,
					ServiceCIDRs: k8s.ServiceCIDRs{
						Configured: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd00:10:96::/108")}, Reader: k,
					},
				},
			} {
				if err := r.SetupWithManager(ctx, p.Manager); err != nil {
					return err
				}
			}
			return nil
		},
		Restore: func(ctx context.Context, p *controllertest.Process) error {
			k := p.Manager.GetClient()
			if err := vpc.CreateDefault(ctx, k); err != nil {
				return err
			}
			var joins []netip.Prefix
			for cidr := range strings.SplitSeq(c.join, ",") {
				joins = append(joins, netip.MustParsePrefix(cidr))
			}
			pods := []netip.Prefix{netip.MustParsePrefix("10.16.0.0/16"), netip.MustParsePrefix("fd00:10:16::/112")}[:len(joins)]
			if err := subnet.CreateDefaults(ctx, k, subnet.Defaults{PodCIDRs: pods, JoinCIDRs: joins}); err != nil {
				return err
			}
			return pod.Restore(ctx, k, p.Engine, p.Allocator)
		},
	})
}

// wipe deletes what tests made, finalizers or not.
func (c *cluster) wipe() {
	c.Helper()
	ctx := context.Background() // also after the test
	if c.process != nil {
		c.process.Stop()
	}
	for _, list := range []client.ObjectList{&kubeovnv1.SubnetList{}, &kubeovnv1.VpcList{}, &kubeovnv1.IPList{}, &corev1.NodeList{}} {
		c.Must(c.Client.List(ctx, list))
		c.Must(apimeta.EachListItem(list, func(item runtime.Object) error {
			o := item.(client.Object)
			base := o.DeepCopyObject().(client.Object)
			if o.SetFinalizers(nil); len(base.GetFinalizers()) > 0 {
				c.Must(client.IgnoreNotFound(c.Client.Patch(ctx, o, client.MergeFrom(base))))
			}
			return client.IgnoreNotFound(c.Client.Delete(ctx, o))
		}))
	}
}

// node creates a node and waits until it is connected.
func (c *cluster) node(name string) *corev1.Node {
	c.Helper()
	o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	c.Create(o)
	base := o.DeepCopy()
	o.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	c.Must(c.Client.Status().Patch(c.Context(), o, client.MergeFrom(base)))
	c.Eventually(func() string {
		if c.Get(o); o.Annotations[kubeovnv1.AnnotationAllocated.Key()] != "true" {
			return fmt.Sprintf("node %s is not connected: %v", name, o.Annotations)
		}
		return ""
	})
	return o
}

// vpc creates a VPC with a subnet of its name and CIDRs, unless these are empty.
func (c *cluster) vpc(name, cidrs string, nat bool, change func(*kubeovnv1.VpcSpec)) *kubeovnv1.Vpc {
	c.Helper()
	v := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if change != nil {
		change(&v.Spec)
	}
	c.Create(v)
	if cidrs != "" {
		c.Create(&kubeovnv1.Subnet{
			ObjectMeta: metav1.ObjectMeta{Name: name + "-net"},
			Spec:       kubeovnv1.SubnetSpec{Vpc: name, CIDRBlock: cidrs, NATOutgoing: nat},
		})
	}
	return v
}

// says waits until the condition TransitReady of a VPC has a status, and these words in its reason and message.
func (c *cluster) says(v *kubeovnv1.Vpc, status metav1.ConditionStatus, words ...string) {
	c.Helper()
	c.Eventually(func() string {
		c.Get(v)
		got := apimeta.FindStatusCondition(v.Status.Conditions, kubeovnv1.ConditionTransitReady)
		if got == nil || got.Status != status || got.ObservedGeneration != v.Generation ||
			slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(got.Reason+": "+got.Message, w) }) {
			return fmt.Sprintf("VPC %s: condition is %+v, want %s with %q", v.Name, got, status, words)
		}
		return ""
	})
}

// rows waits until a table has these rows, written by f and in order; f leaves a row out by returning nothing.
func (c *cluster) rows(table string, f func(row nbtest.Row) string, want ...string) {
	c.Helper()
	c.Eventually(func() string {
		var got []string
		for _, row := range c.Database.Rows(table) {
			if s := f(row); s != "" {
				got = append(got, s)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Sprintf("%s has\n%q, want\n%q", table, got, want)
		}
		return ""
	})
}

// routers waits until the gateway routers are these, as `<name> on <node>`.
func (c *cluster) routers(want ...string) {
	c.Helper()
	c.rows("Logical_Router", func(row nbtest.Row) string {
		options, _ := row["options"].(map[string]string)
		if options["chassis"] == "" {
			return ""
		}
		return fmt.Sprint(row["name"], " on ", options["chassis"])
	}, want...)
}

// routesOf waits until what leads from the router of a VPC to its gateway router is this, in order.
func (c *cluster) routesOf(vpc string, want ...string) {
	c.Helper()
	c.rows("Logical_Router_Static_Route", func(row nbtest.Row) string {
		if ports := row.Strings("output_port"); !slices.Equal(ports, []string{vpc + "-" + vpc + "_transit"}) {
			return ""
		}
		if row["ip_prefix"] == "10.0.0.0/24" { // the Services of the API server of the test
			return ""
		}
		return strings.TrimSpace(fmt.Sprint(row["ip_prefix"], " ", row["route_table"]))
	}, want...)
}
