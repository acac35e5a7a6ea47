// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package vpc_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/controllers/controllertest/networktest"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
)

// podCIDR and joinCIDR are the CIDRs of the OVNCluster.
const (
	podCIDR  = "10.16.0.0/16"
	joinCIDR = "100.64.0.0/16"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

// tenants is a world with running controllers of VPCs, subnets and pods.
type tenants struct {
	*controllertest.World
	process *controllertest.Process
	// limits of the controller of VPCs.
	limits v1alpha1.ControlPlaneProtection
}

func start(t *testing.T) *tenants {
	t.Helper()
	n := &tenants{World: controllertest.New(t)}
	n.Nodes = nil
	n.run()
	return n
}

// run starts the controllers; if they are running, it restarts them, as after a crash.
func (n *tenants) run() {
	n.Helper()
	n.process = n.Restart(n.process, controllertest.Steps{
		Setup: func(ctx context.Context, p *controllertest.Process) error {
			vpcs := networktest.Vpcs(p)
			vpcs.Protection = n.limits
			subnets := networktest.Subnets(p, vpcs)
			subnets.Defaults.PodCIDRs, subnets.Defaults.JoinCIDRs = []netip.Prefix{netip.MustParsePrefix(podCIDR)}, []netip.Prefix{netip.MustParsePrefix(joinCIDR)}
			return p.Run(ctx, vpcs, subnets, networktest.Pods(p))
		},
		Restore: func(ctx context.Context, p *controllertest.Process) error {
			return networktest.Restore(ctx, p, podCIDR, joinCIDR)
		},
	})
	n.Ready(&kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: kubeovnv1.DefaultVpc}})
	for _, name := range []string{kubeovnv1.JoinSubnet, kubeovnv1.DefaultSubnet} {
		n.Ready(&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
}

// newVpc creates a VPC that pods of the namespace default may name.
func (n *tenants) newVpc(name string, change func(*kubeovnv1.VpcSpec)) *kubeovnv1.Vpc {
	n.Helper()
	v := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.VpcSpec{AllowedNamespaces: []kubeovnv1.AllowedNamespace{"default"}}}
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

// peering adds a peering of one or two families.
func peering(remote, local string) func(*kubeovnv1.VpcSpec) {
	return func(s *kubeovnv1.VpcSpec) {
		s.VpcPeerings = append(s.VpcPeerings, &kubeovnv1.VpcPeering{RemoteVpc: remote, LocalConnectIP: local})
	}
}

// ofVpc reports whether the VPC owns a row.
func ofVpc(row nbtest.Row, name string) bool {
	ids, _ := row["external_ids"].(map[string]string)
	return ids["kiln-owner"] == "Vpc//"+name
}

// later waits until a new object would get a later creation timestamp, whose resolution is one second, than o.
func (n *tenants) later(o client.Object) {
	n.Helper()
	n.Eventually(func() string {
		if time.Now().Unix() <= o.GetCreationTimestamp().Unix() {
			return "the second is not over"
		}
		return ""
	})
}
