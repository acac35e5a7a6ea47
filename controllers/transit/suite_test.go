// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package transit_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/controllers/controllertest/networktest"
	"github.com/kiln-net/kiln/controllers/ovneip"
	"github.com/kiln-net/kiln/controllers/transit"
	"github.com/kiln-net/kiln/internal/gateway/gatewaytest"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

// cluster is a test environment in which the controllers of VPCs, subnets, nodes and gateway routers run.
type cluster struct {
	*controllertest.World
	process *controllertest.Process
	leases  *gatewaytest.Leases
	join    string
}

// start returns a cluster with ready and connected nodes.
func start(t *testing.T, join string, nodes ...string) *cluster {
	t.Helper()
	c := &cluster{World: controllertest.New(t), join: join}
	c.Nodes = nil
	c.run()
	for _, name := range nodes {
		c.node(name)
	}
	return c
}

// run starts the controllers. If they ran before, it restarts them as after a crash.
func (c *cluster) run() {
	c.Helper()
	c.leases = &gatewaytest.Leases{}
	var eips *ovneip.Reconciler
	c.process = c.Restart(c.process, controllertest.Steps{
		Setup: func(ctx context.Context, p *controllertest.Process) error {
			eips = &ovneip.Reconciler{Client: p.Client, Allocator: p.Allocator, Networks: p.Networks, Recorder: p.Recorder, Gate: p.Gate}
			vpcs := networktest.Vpcs(p)
			return p.Run(ctx, vpcs, networktest.Subnets(p, vpcs), networktest.Nodes(p), &transit.Reconciler{
				Client: p.Client, Northbound: p.Engine, Allocator: p.Allocator, Networks: p.Networks, Recorder: p.Recorder, Gate: p.Gate, Leases: c.leases,
				ServiceCIDRs: networktest.Services(p), ClusterAccess: kubeovnv1.ClusterAccessServices, WaysOut: p.WaysOut,
			}, networktest.External(p), eips)
		},
		Restore: func(ctx context.Context, p *controllertest.Process) error {
			pods := "10.16.0.0/16,fd00:10:16::/112"
			if !strings.Contains(c.join, ",") {
				pods = "10.16.0.0/16"
			}
			if err := networktest.Restore(ctx, p, pods, c.join); err != nil {
				return err
			}
			return eips.Restore(ctx)
		},
	})
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

// vpc creates a VPC and, unless cidrs is empty, a subnet with its name and these CIDRs.
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

// says waits until the condition TransitReady of a VPC has a status, and contains these words in its reason and message.
func (c *cluster) says(v *kubeovnv1.Vpc, status metav1.ConditionStatus, words ...string) {
	c.Helper()
	c.Says(v, kubeovnv1.ConditionTransitReady, status, words...)
}

// routers waits until the gateway routers are these, in the form `<name> on <node>`.
func (c *cluster) routers(want ...string) {
	c.Helper()
	c.Rows("Logical_Router", func(row nbtest.Row) string {
		options, _ := row["options"].(map[string]string)
		if options["chassis"] == "" {
			return ""
		}
		return fmt.Sprint(row["name"], " on ", options["chassis"])
	}, want...)
}

// routesOf waits until the routes from the router of a VPC to its gateway router are these, sorted.
func (c *cluster) routesOf(vpc string, want ...string) {
	c.Helper()
	c.Rows("Logical_Router_Static_Route", func(row nbtest.Row) string {
		if ports := row.Strings("output_port"); !slices.Equal(ports, []string{vpc + "-" + vpc + "_transit"}) {
			return ""
		}
		if row["ip_prefix"] == "10.0.0.0/24" { // the Services of the test's API server
			return ""
		}
		return strings.TrimSpace(fmt.Sprint(row["ip_prefix"], " ", row["route_table"]))
	}, want...)
}
