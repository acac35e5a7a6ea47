// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1alpha1 "github.com/kiln-net/kiln/api/v1alpha1"
)

// TestChangesOfAnInstalledCluster checks the transition rules of the OVNCluster.
func TestChangesOfAnInstalledCluster(t *testing.T) {
	dual := kubeovnv1alpha1.Network{PodCIDRs: []string{"10.16.0.0/16", "fd00:10:16::/112"}}
	tests := []struct {
		name   string
		before kubeovnv1alpha1.OVNClusterSpec
		change func(*kubeovnv1alpha1.OVNClusterSpec)
		err    string // empty for an accepted change
	}{
		{name: "podCIDRs grow", change: func(s *kubeovnv1alpha1.OVNClusterSpec) { s.Network.PodCIDRs = []string{"10.0.0.0/10"} }},
		{
			name: "podCIDRs shrink", change: func(s *kubeovnv1alpha1.OVNClusterSpec) { s.Network.PodCIDRs = []string{"10.16.0.0/17"} },
			err: `spec.network.podCIDRs: Invalid value: cannot change to 10.16.0.0/17 while pods have addresses of 10.16.0.0/16: set CIDRs that contain these`,
		},
		{
			name: "podCIDRs move", change: func(s *kubeovnv1alpha1.OVNClusterSpec) { s.Network.PodCIDRs = []string{"10.17.0.0/16"} },
			err: "cannot change to 10.17.0.0/16 while pods have addresses of 10.16.0.0/16",
		},
		{name: "podCIDRs get a second family", change: func(s *kubeovnv1alpha1.OVNClusterSpec) { s.Network.PodCIDRs = dual.PodCIDRs }},
		{
			name:   "one of two podCIDRs grows",
			before: kubeovnv1alpha1.OVNClusterSpec{Network: dual},
			change: func(s *kubeovnv1alpha1.OVNClusterSpec) {
				s.Network.PodCIDRs = []string{"10.16.0.0/16", "fd00:10:16::/64"}
			},
		},
		{
			name:   "podCIDRs lose a family",
			before: kubeovnv1alpha1.OVNClusterSpec{Network: dual},
			change: func(s *kubeovnv1alpha1.OVNClusterSpec) { s.Network.PodCIDRs = dual.PodCIDRs[:1] },
			err:    "cannot change to 10.16.0.0/16 while pods have addresses of 10.16.0.0/16, fd00:10:16::/112",
		},
		{
			name:   "podCIDRs get another order",
			before: kubeovnv1alpha1.OVNClusterSpec{Network: dual},
			change: func(s *kubeovnv1alpha1.OVNClusterSpec) {
				s.Network.PodCIDRs = []string{"fd00:10:16::/112", "10.16.0.0/16"}
			},
			err: "in the same order",
		},
		{
			name: "joinCIDRs are written out", change: func(s *kubeovnv1alpha1.OVNClusterSpec) { s.Network.JoinCIDRs = []string{"100.64.0.0/16"} },
		},
		{
			name: "joinCIDRs differ from the default", change: func(s *kubeovnv1alpha1.OVNClusterSpec) { s.Network.JoinCIDRs = []string{"100.65.0.0/16"} },
			err: "spec.network.joinCIDRs: Invalid value: cannot change to 100.65.0.0/16 while nodes have addresses of 100.64.0.0/16: keep these",
		},
		{
			name: "joinCIDRs grow", change: func(s *kubeovnv1alpha1.OVNClusterSpec) { s.Network.JoinCIDRs = []string{"100.64.0.0/15"} },
			err: "cannot change to 100.64.0.0/15 while nodes have addresses of 100.64.0.0/16",
		},
		{
			name:   "joinCIDRs are left out",
			before: kubeovnv1alpha1.OVNClusterSpec{Network: kubeovnv1alpha1.Network{JoinCIDRs: []string{"100.65.0.0/16"}}},
			change: func(s *kubeovnv1alpha1.OVNClusterSpec) { s.Network.JoinCIDRs = nil },
			err:    "cannot change to the default while nodes have addresses of 100.65.0.0/16",
		},
		{
			name:   "joinCIDRs get a second family",
			before: kubeovnv1alpha1.OVNClusterSpec{Network: kubeovnv1alpha1.Network{JoinCIDRs: []string{"100.65.0.0/16"}}},
			change: func(s *kubeovnv1alpha1.OVNClusterSpec) {
				s.Network.PodCIDRs, s.Network.JoinCIDRs = dual.PodCIDRs, []string{"100.65.0.0/16", "fd00:0100:65::/112"}
			},
		},
		{name: "serviceCIDRs", change: func(s *kubeovnv1alpha1.OVNClusterSpec) { s.Network.ServiceCIDRs = []string{"10.112.0.0/12"} }},
		{
			name: "tunnelType", change: func(s *kubeovnv1alpha1.OVNClusterSpec) { s.Network.TunnelType = kubeovnv1alpha1.TunnelVXLAN },
		},
		{
			name: "datapath", change: func(s *kubeovnv1alpha1.OVNClusterSpec) {
				s.Nodes = kubeovnv1alpha1.Nodes{Datapath: kubeovnv1alpha1.DatapathUserspace, TunnelInterface: "eth1"}
			},
			err: "spec.nodes.datapath: Invalid value: cannot change from Kernel to Userspace on an installed cluster",
		},
		{name: "tunnelInterface", change: func(s *kubeovnv1alpha1.OVNClusterSpec) { s.Nodes.TunnelInterface = "eth1" }},
		{
			name: "openVSwitchDirectory", change: func(s *kubeovnv1alpha1.OVNClusterSpec) { s.Nodes.OpenVSwitchDirectory = "/var/lib/openvswitch" },
			err: "spec.nodes.openVSwitchDirectory: Invalid value: cannot change from /etc/openvswitch to /var/lib/openvswitch on an installed cluster",
		},
		{
			name: "podGateways are added", change: func(s *kubeovnv1alpha1.OVNClusterSpec) { s.Network.PodGateways = []string{"10.16.0.254"} },
			err: "cannot change after the installation: change gateway of the Subnet ovn-default instead",
		},
		{
			name:   "podGateways are left out while podCIDRs grow",
			before: kubeovnv1alpha1.OVNClusterSpec{Network: kubeovnv1alpha1.Network{PodGateways: []string{"10.16.0.254"}}},
			change: func(s *kubeovnv1alpha1.OVNClusterSpec) {
				s.Network.PodGateways, s.Network.PodCIDRs = nil, []string{"10.0.0.0/10"}
			},
			err: "change gateway of the Subnet ovn-default instead",
		},
		{
			name: "podVlan", change: func(s *kubeovnv1alpha1.OVNClusterSpec) { s.Network.PodVlan = "office" },
			err: "spec.network.podVlan: Invalid value: cannot change after the installation",
		},
		{
			name: "excludeIPs", change: func(s *kubeovnv1alpha1.OVNClusterSpec) { s.Network.ExcludeIPs = []string{"10.16.0.9"} },
			err: "cannot change after the installation: change excludeIps of the Subnet ovn-default instead",
		},
		{
			name:   "podCIDRs grow around gateways and exclusions",
			before: kubeovnv1alpha1.OVNClusterSpec{Network: kubeovnv1alpha1.Network{PodGateways: []string{"10.16.0.254"}, ExcludeIPs: []string{"10.16.0.9"}}},
			change: func(s *kubeovnv1alpha1.OVNClusterSpec) { s.Network.PodCIDRs = []string{"10.0.0.0/10"} },
		},
		{name: "toolingDirectory", change: func(s *kubeovnv1alpha1.OVNClusterSpec) { s.Agent.ToolingDirectory = "/usr/local/bin" }},
		{name: "cniConfPriority", change: func(s *kubeovnv1alpha1.OVNClusterSpec) { s.Agent.CNIConfPriority = "10" }},
		{
			name: "dataDirectory", change: func(s *kubeovnv1alpha1.OVNClusterSpec) { s.Central.DataDirectory = "/var/lib/ovn" },
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cluster := &kubeovnv1alpha1.OVNCluster{ObjectMeta: metav1.ObjectMeta{Name: kubeovnv1alpha1.OVNClusterName}, Spec: tt.before}
			if err := api.Create(t.Context(), cluster); err != nil {
				t.Fatal(err)
			}
			defer remove(t, cluster)
			changed := cluster.DeepCopy()
			tt.change(&changed.Spec)
			if err := api.Update(t.Context(), changed.DeepCopy(), client.DryRunAll); err != nil {
				t.Errorf("before the installation: %v", err)
			}
			cluster.Status.Northbound.ClusterID = "5f5b2a3e-0000-4000-8000-000000000001"
			cluster.Status.PodCIDRs, cluster.Status.JoinCIDRs = cluster.Spec.Network.PodCIDRs, cluster.Spec.Network.JoinCIDRs
			if len(cluster.Status.JoinCIDRs) == 0 {
				cluster.Status.JoinCIDRs = []string{"100.64.0.0/16", "fd00:100:64::/112"}[:len(cluster.Status.PodCIDRs)]
			}
			if err := api.Status().Update(t.Context(), cluster); err != nil {
				t.Fatal(err)
			}
			changed.ResourceVersion = cluster.ResourceVersion
			err := api.Update(t.Context(), changed, client.DryRunAll)
			if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
				t.Errorf("got %v, want %q", err, tt.err)
			}
		})
	}
}

// TestAGrowthThatIsNotAppliedCanBeUndone: podCIDRs were set to CIDRs that subnet ovn-default cannot have.
func TestAGrowthThatIsNotAppliedCanBeUndone(t *testing.T) {
	cluster := &kubeovnv1alpha1.OVNCluster{
		ObjectMeta: metav1.ObjectMeta{Name: kubeovnv1alpha1.OVNClusterName},
		Spec:       kubeovnv1alpha1.OVNClusterSpec{Network: kubeovnv1alpha1.Network{PodCIDRs: []string{"10.0.0.0/10"}}},
	}
	if err := api.Create(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	defer remove(t, cluster)
	cluster.Status.Northbound.ClusterID, cluster.Status.PodCIDRs = "5f5b2a3e-0000-4000-8000-000000000001", []string{"10.16.0.0/16"}
	if err := api.Status().Update(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	for cidr, allowed := range map[string]bool{"10.16.0.0/16": true, "10.16.0.0/15": true, "10.17.0.0/16": false} {
		changed := cluster.DeepCopy()
		changed.Spec.Network.PodCIDRs = []string{cidr}
		if err := api.Update(t.Context(), changed, client.DryRunAll); (err == nil) != allowed {
			t.Errorf("%s: %v", cidr, err)
		}
	}
	changed := cluster.DeepCopy()
	changed.Spec.Image = "kiln:next"
	if err := api.Update(t.Context(), changed, client.DryRunAll); err != nil {
		t.Errorf("another field: %v", err)
	}
}

func remove(t *testing.T, o client.Object) {
	t.Helper()
	if err := api.Delete(t.Context(), o); err != nil {
		t.Error(err)
	}
}

func TestAThirdDataDirectoryWaitsForTheMove(t *testing.T) {
	cluster := &kubeovnv1alpha1.OVNCluster{ObjectMeta: metav1.ObjectMeta{Name: kubeovnv1alpha1.OVNClusterName}}
	cluster.Spec.Central.DataDirectory = "/b"
	if err := api.Create(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	defer remove(t, cluster)
	cluster.Status.DataDirectories = []string{"/a", "/b"}
	if err := api.Status().Update(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	for directory, want := range map[string]string{
		"/a": "", "/b": "", "/c": "spec.central.dataDirectory: Invalid value: cannot change to /c while members move their files between /a and /b: set one of these",
	} {
		changed := cluster.DeepCopy()
		changed.Spec.Central.DataDirectory = directory
		err := api.Update(t.Context(), changed, client.DryRunAll)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %v, want %q", directory, err, want)
		}
	}
}
