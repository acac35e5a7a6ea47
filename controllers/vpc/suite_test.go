// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package vpc_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/controllers/pod"
	"github.com/kiln-net/kiln/controllers/subnet"
	"github.com/kiln-net/kiln/controllers/vpc"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

// tenants is a world with the controllers of VPCs, subnets and pods at work.
type tenants struct {
	*controllertest.World
	process *controllertest.Process
}

func start(t *testing.T) *tenants {
	t.Helper()
	n := &tenants{World: controllertest.New(t)}
	n.Nodes = nil
	n.wipe()
	t.Cleanup(n.wipe)
	n.run()
	return n
}

// run starts the controllers, as after a crash when they ran before.
func (n *tenants) run() {
	n.Helper()
	if n.process != nil {
		n.process.Stop()
	}
	n.process = n.Start(controllertest.Steps{
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
					Detached: vpcs.Detached,
				},
				&pod.Reconciler{
					Client: c, Northbound: p.Engine, Allocator: p.Allocator, Namespaces: p.Namespaces, Pools: p.Pools, Vips: p.Vips, Sets: p.Sets, Recorder: events, Gate: p.Gate, Workers: 4,
				},
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
				PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.16.0.0/16")}, JoinCIDRs: []netip.Prefix{netip.MustParsePrefix("100.64.0.0/16")},
			})
			if err != nil {
				return err
			}
			return pod.Restore(ctx, c, p.Engine, p.Allocator)
		},
	})
	n.ready(&kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: kubeovnv1.DefaultVpc}})
	for _, name := range []string{kubeovnv1.JoinSubnet, kubeovnv1.DefaultSubnet} {
		n.ready(&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
}

// wipe deletes what tests made, finalizers or not.
func (n *tenants) wipe() {
	n.Helper()
	ctx := context.Background() // also after the test
	if n.process != nil {
		n.process.Stop()
	}
	for _, list := range []client.ObjectList{&corev1.PodList{}, &kubeovnv1.SubnetList{}, &kubeovnv1.VpcList{}, &kubeovnv1.IPList{}} {
		n.Must(n.Client.List(ctx, list))
		n.Must(apimeta.EachListItem(list, func(item runtime.Object) error {
			o := item.(client.Object)
			n.release(ctx, o)
			return client.IgnoreNotFound(n.Client.Delete(ctx, o, client.GracePeriodSeconds(0)))
		}))
	}
}

// release takes the finalizers off an object, as a user who has lost patience does.
func (n *tenants) release(ctx context.Context, o client.Object) {
	n.Helper()
	if len(o.GetFinalizers()) == 0 {
		return
	}
	base := o.DeepCopyObject().(client.Object)
	o.SetFinalizers(nil)
	n.Must(client.IgnoreNotFound(n.Client.Patch(ctx, o, client.MergeFrom(base))))
}

// newVpc creates a VPC.
func (n *tenants) newVpc(name string, change func(*kubeovnv1.VpcSpec)) *kubeovnv1.Vpc {
	n.Helper()
	v := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if change != nil {
		change(&v.Spec)
	}
	n.Create(v)
	return v
}

// newSubnet creates a subnet of a VPC.
func (n *tenants) newSubnet(name, vpc, cidrs string, namespaces ...string) *kubeovnv1.Subnet {
	n.Helper()
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.SubnetSpec{Vpc: vpc, CIDRBlock: cidrs, Namespaces: namespaces}}
	n.Create(s)
	return s
}

// peering is a peering of two families or one.
func peering(remote, local string) func(*kubeovnv1.VpcSpec) {
	return func(s *kubeovnv1.VpcSpec) {
		s.VpcPeerings = append(s.VpcPeerings, &kubeovnv1.VpcPeering{RemoteVpc: remote, LocalConnectIP: local})
	}
}

// says waits until a condition of an object has a status, at the object's present generation, and all of these words in its message.
func (n *tenants) says(o client.Object, conditionType string, status metav1.ConditionStatus, words ...string) {
	n.Helper()
	n.Eventually(func() string {
		if !n.Get(o) {
			return fmt.Sprintf("%s is gone", o.GetName())
		}
		var conditions []metav1.Condition
		switch o := o.(type) {
		case *kubeovnv1.Vpc:
			conditions = o.Status.Conditions
		case *kubeovnv1.Subnet:
			conditions = o.Status.Conditions
		}
		c := apimeta.FindStatusCondition(conditions, conditionType)
		if c == nil || c.Status != status || c.ObservedGeneration != o.GetGeneration() ||
			slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(c.Reason+": "+c.Message, w) }) {
			return fmt.Sprintf("%s: condition %s is %+v at generation %d, want %s with %q", o.GetName(), conditionType, c, o.GetGeneration(), status, words)
		}
		return ""
	})
}

// ready waits until all of an object is in force.
func (n *tenants) ready(objects ...client.Object) {
	n.Helper()
	for _, o := range objects {
		n.says(o, kubeovnv1.ConditionReady, metav1.ConditionTrue)
	}
}

// rows waits until a table has these rows, written by f and in order; f leaves a row out by returning nothing.
func (n *tenants) rows(table string, f func(row nbtest.Row) string, want ...string) {
	n.Helper()
	n.Eventually(func() string {
		var got []string
		for _, row := range n.Database.Rows(table) {
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

// ofVpc reports whether a row is the VPC's own.
func ofVpc(row nbtest.Row, name string) bool {
	ids, _ := row["external_ids"].(map[string]string)
	return ids["kiln-owner"] == "Vpc//"+name
}

// later waits until what is created now is younger than an object.
func (n *tenants) later(o client.Object) {
	n.Helper()
	n.Eventually(func() string {
		if time.Now().Unix() <= o.GetCreationTimestamp().Unix() {
			return "the second is not over"
		}
		return ""
	})
}

// gone waits until objects are not there.
func (n *tenants) gone(objects ...client.Object) {
	n.Helper()
	for _, o := range objects {
		n.Eventually(func() string {
			if n.Get(o) {
				return fmt.Sprintf("%T %s is still there", o, o.GetName())
			}
			return ""
		})
	}
}
