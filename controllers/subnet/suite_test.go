// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet_test

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/controllers/controllertest/networktest"
	"github.com/kiln-net/kiln/controllers/subnet"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

// network is a test environment in which the controllers of VPCs, subnets and nodes run.
type network struct {
	*controllertest.World
	process *controllertest.Process
	// usageDelay of the subnet controller.
	usageDelay time.Duration
	// ahead is how far the clock of the controller of nodes is ahead of the real time, in nanoseconds.
	ahead atomic.Int64
	// nodeClient wraps the client of the controller of nodes; it may be nil.
	nodeClient func(client.Client) client.Client
}

// start returns an empty dual-stack network. Statuses do not follow the usage of subnets: the reconciliations for usage, a second after
// each change of a subnet, would hide a missing event.
func start(t *testing.T) *network {
	t.Helper()
	return startWith(t, time.Hour)
}

// startMeasured is like start, but statuses follow the usage of subnets.
func startMeasured(t *testing.T) *network {
	t.Helper()
	return startWith(t, 0)
}

func startWith(t *testing.T, usageDelay time.Duration) *network {
	t.Helper()
	n := &network{World: controllertest.New(t), usageDelay: usageDelay}
	n.Nodes = nil // the controllers under test connect the nodes
	n.run()
	return n
}

// run starts the controllers. If they ran before, it restarts them as after a crash.
func (n *network) run() { n.runWith(cache.Options{}) }

// runWith is like run, with cache options and changes of the subnet reconciler.
func (n *network) runWith(options cache.Options, changes ...func(*subnet.Reconciler)) {
	n.Helper()
	n.process = n.Restart(n.process, controllertest.Steps{
		Cache: options,
		Setup: func(ctx context.Context, p *controllertest.Process) error {
			vpcs := networktest.Vpcs(p)
			nodes := networktest.Nodes(p)
			if n.nodeClient != nil {
				nodes.Client = n.nodeClient(nodes.Client)
			}
			nodes.Now = func() time.Time { return time.Now().Add(time.Duration(n.ahead.Load())) }
			subnets := networktest.Subnets(p, vpcs)
			subnets.UsageDelay = n.usageDelay
			subnets.SilentDelay, subnets.SilentEvery = time.Millisecond, time.Millisecond
			for _, change := range changes {
				change(subnets)
			}
			return p.Run(ctx, vpcs, subnets, nodes)
		},
		Restore: func(ctx context.Context, p *controllertest.Process) error {
			return networktest.Restore(ctx, p, "10.16.0.0/16,fd00:10:16::/64", "100.64.0.0/16,fd00:100:64::/112")
		},
	})
}

// subnet reads a subnet.
func (n *network) subnet(name string) *kubeovnv1.Subnet {
	n.Helper()
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Get(s)
	return s
}

// node creates a node with addresses.
func (n *network) node(name string, addresses ...string) *corev1.Node {
	n.Helper()
	o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Create(o)
	n.setAddresses(o, addresses...)
	return o
}

// host creates a node with an address, and waits until the controller of subnets knows the address.
func (n *network) host(name, address string) *corev1.Node {
	n.Helper()
	o := n.node(name, address)
	addr := netip.MustParseAddr(address)
	n.Eventually(func() string {
		hosts, err := n.process.Networks.HostsIn(n.Context(), []netip.Prefix{netip.PrefixFrom(addr, addr.BitLen())})
		if err != nil || hosts[addr] != "node "+name {
			return fmt.Sprintf("%s is known as %q (%v)", address, hosts[addr], err)
		}
		return ""
	})
	return o
}

func (n *network) setAddresses(o *corev1.Node, addresses ...string) {
	n.Helper()
	base := o.DeepCopy()
	o.Status.Addresses = nil
	for _, a := range addresses {
		o.Status.Addresses = append(o.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	n.Must(n.Client.Status().Patch(n.Context(), o, client.MergeFrom(base)))
}

// setReady sets the condition Ready of a node.
func (n *network) setReady(o *corev1.Node, status corev1.ConditionStatus) {
	n.Helper()
	base := o.DeepCopy()
	o.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, LastTransitionTime: metav1.Now()}}
	n.Must(n.Client.Status().Patch(n.Context(), o, client.MergeFrom(base)))
}

// advance sets the clock of the controller of nodes forward.
func (n *network) advance(by time.Duration) { n.ahead.Add(int64(by)) }

// touch makes the controller of nodes reconcile a node.
func (n *network) touch(o *corev1.Node) {
	n.Helper()
	n.Get(o)
	n.Change(o, func() { o.Annotations = nil })
	n.connected(o)
}

// condition waits until a subnet's condition has a status for the current generation, and returns it.
func (n *network) condition(subnet, conditionType string, status metav1.ConditionStatus) metav1.Condition {
	n.Helper()
	return *n.Says(&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: subnet}}, conditionType, status)
}

// rows waits until a column of a table has these values, sorted.
func (n *network) rows(table, column string, want ...string) {
	n.Helper()
	n.Eventually(func() string {
		if got := n.column(table, column); !slices.Equal(got, want) {
			return fmt.Sprintf("%s.%s has\n%q, want\n%q", table, column, got, want)
		}
		return ""
	})
}

// column returns the values of a column of a table, sorted.
func (n *network) column(table, column string) []string {
	n.Helper()
	var values []string
	for _, row := range n.Database.Rows(table) {
		values = append(values, strings.Join(row.Strings(column), " "))
	}
	slices.Sort(values)
	return values
}

// rules waits until the matches of the ACLs are these. $set stands for any address set.
func (n *network) rules(want ...string) {
	n.Helper()
	n.Rows("ACL", func(row nbtest.Row) string { return setNames.ReplaceAllLiteralString(row["match"].(string), "$set") }, want...)
}

// setNames matches the generated names of address sets in ACL matches.
var setNames = regexp.MustCompile(`\$a[0-9a-f]{20}`)

// nodeSets waits until the address sets of nodes have this content, in brackets and sorted.
func (n *network) nodeSets(want ...string) {
	n.Helper()
	n.Rows("Address_Set", func(row nbtest.Row) string {
		if !strings.HasPrefix(row["external_ids"].(map[string]string)["kiln-owner"], "Node/") {
			return ""
		}
		return fmt.Sprint("[", strings.Join(row.Strings("addresses"), " "), "]")
	}, want...)
}

// measured waits until the metrics of a subnet are these, sorted.
func (n *network) measured(subnet string, want ...string) {
	n.Helper()
	n.Eventually(func() string {
		if got := n.series(subnet); !slices.Equal(got, want) {
			return fmt.Sprintf("metrics of subnet %s are %q, want %q", subnet, got, want)
		}
		return ""
	})
}

func (n *network) series(subnet string) []string {
	n.Helper()
	families, err := metrics.Registry.Gather()
	n.Must(err)
	values := map[string]map[string]float64{} // by metric and labels
	for _, family := range families {
		for _, m := range family.Metric {
			labels := map[string]string{}
			for _, pair := range m.Label {
				labels[pair.GetName()] = pair.GetValue()
			}
			if labels["subnet_name"] != subnet {
				continue
			}
			key := labels["protocol"] + " " + labels["subnet_cidr"]
			if values[key] == nil {
				values[key] = map[string]float64{}
			}
			values[key][family.GetName()] = m.Gauge.GetValue()
		}
	}
	var out []string
	for key, v := range values {
		if limit, ok := v["kiln_subnet_ports_limit"]; ok {
			out = append(out, fmt.Sprintf("%.0f of %.0f ports", v["kiln_subnet_ports"], limit))
			continue
		}
		out = append(out, fmt.Sprintf("%s: %.0f free, %.0f held", key, v["subnet_available_ip_count"], v["subnet_used_ip_count"]))
	}
	slices.Sort(out)
	return out
}
