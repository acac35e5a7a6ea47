// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
)

// serviceOfAPIServer is the Service that the API server keeps for itself in the namespace `default`.
const serviceOfAPIServer = "kubernetes"

// inputs are what a subnet's rows and status follow from.
type inputs struct {
	subnet *kubeovnv1.Subnet
	// peers are the other subnets of its VPC.
	peers []*kubeovnv1.Subnet
	// hosts are addresses that the nodes must keep reaching by their own network, with what they belong to.
	hosts map[netip.Addr]string
}

// gather reads the inputs from the cache. subnet is nil when there is no such object.
func (r *Reconciler) gather(ctx context.Context, name string) (inputs, error) {
	subnet := &kubeovnv1.Subnet{}
	if err := r.Client.Get(ctx, client.ObjectKey{Name: name}, subnet); apierrors.IsNotFound(err) {
		return inputs{}, nil
	} else if err != nil {
		return inputs{}, fmt.Errorf("get it: %w", err)
	}
	in := inputs{subnet: subnet}
	var subnets kubeovnv1.SubnetList
	if err := r.Client.List(ctx, &subnets, client.UnsafeDisableDeepCopy); err != nil {
		return inputs{}, fmt.Errorf("list subnets: %w", err)
	}
	for i := range subnets.Items {
		if peer := &subnets.Items[i]; peer.Name != name && vpcOf(peer) == vpcOf(subnet) {
			in.peers = append(in.peers, peer)
		}
	}
	var err error
	in.hosts, err = r.hosts(ctx)
	return in, err
}

// hosts are the addresses of nodes and of the API server.
func (r *Reconciler) hosts(ctx context.Context) (map[netip.Addr]string, error) {
	hosts := map[netip.Addr]string{}
	var nodes corev1.NodeList
	if err := r.Client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	for i := range nodes.Items {
		for _, ip := range k8s.InternalIPs(&nodes.Items[i]) {
			hosts[ip] = "node " + nodes.Items[i].Name
		}
	}
	var slices discoveryv1.EndpointSliceList
	if err := r.Client.List(ctx, &slices, client.InNamespace(metav1.NamespaceDefault),
		client.MatchingLabels{discoveryv1.LabelServiceName: serviceOfAPIServer}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list endpoints of the API server: %w", err)
	}
	for i := range slices.Items {
		for _, addr := range endpoints(&slices.Items[i]) {
			hosts[addr] = "the API server"
		}
	}
	return hosts, nil
}

// endpoints are the addresses in an EndpointSlice; names are none.
func endpoints(slice *discoveryv1.EndpointSlice) []netip.Addr {
	var addrs []netip.Addr
	for _, endpoint := range slice.Endpoints {
		for _, a := range endpoint.Addresses {
			if addr, err := ipfamily.ParseAddr(a); err == nil {
				addrs = append(addrs, addr)
			}
		}
	}
	return addrs
}
