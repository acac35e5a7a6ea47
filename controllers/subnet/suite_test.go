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
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/controllers/node"
	"github.com/kiln-net/kiln/controllers/pod"
	"github.com/kiln-net/kiln/controllers/subnet"
	"github.com/kiln-net/kiln/controllers/vpc"
	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

// network is a world with the controllers of VPCs, subnets and nodes at work.
type network struct {
	*controllertest.World
	process *controllertest.Process
}

// start returns an empty network of two families.
func start(t *testing.T) *network {
	t.Helper()
	n := &network{World: controllertest.New(t)}
	n.Nodes = nil // the controllers under test connect nodes
	n.wipe()
	t.Cleanup(n.wipe)
	n.run()
	return n
}

// run starts the controllers, as after a crash when they ran before.
func (n *network) run() { n.runWith(cache.Options{}) }

// runWith is run with a cache that differs.
func (n *network) runWith(options cache.Options) {
	n.Helper()
	if n.process != nil {
		n.process.Stop()
	}
	n.process = n.Start(controllertest.Steps{
		Cache: options,
		Setup: func(ctx context.Context, p *controllertest.Process) error {
			c, events := p.Manager.GetClient(), p.Manager.GetEventRecorder("test")
			vpcs := &vpc.Reconciler{
				Client: c, Northbound: p.Engine, Networks: p.Networks, Namespaces: p.Namespaces, Recorder: events, Gate: p.Gate,
			}
			for _, r := range []interface {
				SetupWithManager(context.Context, ctrl.Manager) error
			}{
				vpcs,
				&subnet.Reconciler{
					Client: c, Northbound: p.Engine, Allocator: p.Allocator, Networks: p.Networks, Recorder: events, Gate: p.Gate,
					Detached:     vpcs.Detached,
					ServiceCIDRs: k8s.ServiceCIDRs{Configured: prefixes("10.96.0.0/12"), Reader: c},
				},
				&node.Reconciler{Client: c, Northbound: p.Engine, Allocator: p.Allocator, Recorder: events, Gate: p.Gate},
			} {
				if err := r.SetupWithManager(ctx, p.Manager); err != nil {
					return err
				}
			}
			return nil
		},
		Restore: func(ctx context.Context, p *controllertest.Process) error {
			c := p.Manager.GetClient()
			if err := vpc.CreateDefault(ctx, c); err != nil {
				return err
			}
			err := subnet.CreateDefaults(ctx, c, subnet.Defaults{
				PodCIDRs:  prefixes("10.16.0.0/16,fd00:10:16::/64"),
				JoinCIDRs: prefixes("100.64.0.0/16,fd00:100:64::/112"),
			})
			if err != nil {
				return err
			}
			return pod.Restore(ctx, c, p.Engine, p.Allocator)
		},
	})
}

func prefixes(s string) []netip.Prefix {
	cidrs, err := ipfamily.ParseCIDRs(s)
	if err != nil {
		panic(err)
	}
	return cidrs
}

// wipe deletes what tests made, finalizers or not.
func (n *network) wipe() {
	n.Helper()
	ctx := context.Background() // also after the test
	if n.process != nil {
		n.process.Stop()
	}
	for _, list := range []client.ObjectList{&kubeovnv1.SubnetList{}, &kubeovnv1.VpcList{}, &kubeovnv1.IPList{}, &corev1.NodeList{}} {
		n.Must(n.Client.List(ctx, list))
		n.Must(apimeta.EachListItem(list, func(item runtime.Object) error {
			o := item.(client.Object)
			if len(o.GetFinalizers()) > 0 {
				base := o.DeepCopyObject().(client.Object)
				o.SetFinalizers(nil)
				if err := n.Client.Patch(ctx, o, client.MergeFrom(base)); client.IgnoreNotFound(err) != nil {
					return err
				}
			}
			return client.IgnoreNotFound(n.Client.Delete(ctx, o))
		}))
	}
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

func (n *network) setAddresses(o *corev1.Node, addresses ...string) {
	n.Helper()
	base := o.DeepCopy()
	o.Status.Addresses = nil
	for _, a := range addresses {
		o.Status.Addresses = append(o.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	n.Must(n.Client.Status().Patch(n.Context(), o, client.MergeFrom(base)))
}

// condition waits until a subnet's condition, as seen at the subnet's present generation, has a status, and returns it.
func (n *network) condition(subnet, conditionType string, status metav1.ConditionStatus) metav1.Condition {
	n.Helper()
	var found *metav1.Condition
	n.Eventually(func() string {
		s := n.subnet(subnet)
		found = apimeta.FindStatusCondition(s.Status.Conditions, conditionType)
		if found == nil || found.Status != status || found.ObservedGeneration != s.Generation {
			return fmt.Sprintf("subnet %s: condition %s is %+v at generation %d, want %s", subnet, conditionType, found, s.Generation, status)
		}
		return ""
	})
	return *found
}

// gone waits until an object is not there.
func (n *network) gone(o client.Object) {
	n.Helper()
	n.Eventually(func() string {
		if n.Get(o) {
			return fmt.Sprintf("%T %s is still there", o, o.GetName())
		}
		return ""
	})
}

// rows waits until a column of a table has these values, in order.
func (n *network) rows(table, column string, want ...string) {
	n.Helper()
	n.Eventually(func() string {
		if got := n.column(table, column); !slices.Equal(got, want) {
			return fmt.Sprintf("%s.%s has\n%q, want\n%q", table, column, got, want)
		}
		return ""
	})
}

// column is the values of a column of a table, in order.
func (n *network) column(table, column string) []string {
	n.Helper()
	var values []string
	for _, row := range n.Database.Rows(table) {
		values = append(values, strings.Join(row.Strings(column), " "))
	}
	slices.Sort(values)
	return values
}

// rules waits until the matches of the ACLs are these; $set stands for any address set.
func (n *network) rules(want ...string) {
	n.Helper()
	n.Eventually(func() string {
		got := n.column("ACL", "match")
		for i := range got {
			got[i] = setNames.ReplaceAllLiteralString(got[i], "$set")
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Sprintf("ACLs match\n%q, want\n%q", got, want)
		}
		return ""
	})
}

// setNames are those of address sets in matches: computed ones.
var setNames = regexp.MustCompile(`\$a[0-9a-f]{20}`)

// nodeSets waits until the address sets that nodes own hold this, in order.
func (n *network) nodeSets(want ...string) {
	n.Helper()
	n.Eventually(func() string {
		var got []string
		for _, row := range n.Database.Rows("Address_Set") {
			if strings.HasPrefix(row["external_ids"].(map[string]string)["kiln-owner"], "Node/") {
				got = append(got, strings.Join(row.Strings("addresses"), " "))
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Sprintf("address sets of nodes hold\n%q, want\n%q", got, want)
		}
		return ""
	})
}

// measured waits until the metrics of a subnet are these.
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
		out = append(out, fmt.Sprintf("%s: %.0f free, %.0f held", key, v["subnet_available_ip_count"], v["subnet_used_ip_count"]))
	}
	return out
}

// event waits until an object has an event of this reason.
func (n *network) event(o client.Object, reason string) {
	n.Helper()
	n.Eventually(func() string {
		var events eventsv1.EventList
		n.Must(n.Client.List(n.Context(), &events))
		for i := range events.Items {
			if e := &events.Items[i]; e.Regarding.UID == o.GetUID() && e.Reason == reason {
				return ""
			}
		}
		return fmt.Sprintf("%s has no event %s", o.GetName(), reason)
	})
}
