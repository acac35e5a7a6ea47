// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/kiln-net/kiln/api/v1alpha1"
	lab "github.com/kiln-net/kiln/hack/lab/cluster"
	"github.com/kiln-net/kiln/hack/lab/topology"
)

// tunnelInterface is the second interface of the lab's nodes, which carries only tunnels.
const tunnelInterface = "eth1"

// Families of pods.
const (
	Dual = "dual"
	IPv4 = "ipv4"
	IPv6 = "ipv6"
)

// LabSpec returns the spec of the lab's OVNCluster. With the kernel datapath, the nodes of the lab have one CPU in all, so the components
// request little of it.
func LabSpec(l *lab.Cluster, families string) (v1alpha1.OVNClusterSpec, error) {
	network := v1alpha1.Network{
		PodCIDRs:     []string{"10.16.0.0/16", "fd00:10:16::/112"},
		JoinCIDRs:    []string{"100.64.0.0/16", "fd00:100:64::/112"},
		ServiceCIDRs: texts(l.ServiceCIDRs()),
	}
	switch families {
	case Dual:
	case IPv4:
		network.PodCIDRs, network.JoinCIDRs = network.PodCIDRs[:1], network.JoinCIDRs[:1]
	case IPv6:
		network.PodCIDRs, network.JoinCIDRs = network.PodCIDRs[1:], network.JoinCIDRs[1:]
	default:
		return v1alpha1.OVNClusterSpec{}, fmt.Errorf("families %q are none of %s, %s and %s", families, Dual, IPv4, IPv6)
	}
	access := v1alpha1.NodeAccessKiln
	if l.KubeProxy() {
		access = v1alpha1.NodeAccessKubeProxy
	}
	datapath, requests := v1alpha1.DatapathUserspace, corev1.ResourceRequirements{}
	if l.KernelDatapath() {
		datapath, requests.Requests = v1alpha1.DatapathKernel, corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m")}
	}
	tunnels := tunnelInterface
	if l.SingleNIC() {
		tunnels = "eth0"
	}
	return v1alpha1.OVNClusterSpec{
		APIServer:  &v1alpha1.APIServer{Host: l.Nodes()[0].Addresses()[0].String(), Port: topology.APIServerPort},
		Network:    network,
		Central:    v1alpha1.Central{Placement: v1alpha1.Placement{Resources: requests}},
		Controller: v1alpha1.Controller{Placement: v1alpha1.Placement{Resources: requests}},
		Agent:      v1alpha1.Agent{Resources: requests},
		Nodes:      v1alpha1.Nodes{Datapath: datapath, TunnelInterface: tunnels},
		Services:   v1alpha1.Services{NodeAccess: access},
	}, nil
}

func texts(prefixes []netip.Prefix) []string {
	out := make([]string, 0, len(prefixes))
	for _, p := range prefixes {
		out = append(out, p.String())
	}
	return out
}

// LabNode runs commands on the lab's nodes.
type LabNode struct{ Lab *lab.Cluster }

// Exec runs a command in the node's namespaces and returns its standard output.
func (n LabNode) Exec(ctx context.Context, node string, command ...string) (string, error) {
	return n.Lab.Output(ctx, node, command...)
}

// Workers returns the names of the lab's nodes without the control plane, on which any pod can run.
func Workers(l *lab.Cluster) ([]string, error) {
	var names []string
	for _, n := range l.Nodes() {
		if !n.ControlPlane {
			names = append(names, n.Name)
		}
	}
	if len(names) < 2 {
		return nil, fmt.Errorf("the lab has %d workers: the checks between nodes need 2 (run: go run ./hack/lab up --workers 2)", len(names))
	}
	return names, nil
}
