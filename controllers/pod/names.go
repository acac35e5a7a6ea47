// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/pod/address"
	"github.com/kiln-net/kiln/internal/address/leases"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// Port names of pods, `<pod>.<namespace>`, and of nodes, `node-<node>`, can conflict, and so can those of underlay subnets, `localnet.<subnet>`. The node has precedence: a tenant must
// not keep a node from joining.

// yieldName removes a port whose name belongs to a node. It returns a *address.Problem for it, and for a new port with the name of an underlay subnet's port to its physical
// network. The pod is retried when the node's address on the join subnet becomes free.
func (r *Reconciler) yieldName(ctx context.Context, s *subject) error {
	port := s.port
	if name, is := strings.CutPrefix(port.Name, translate.LocalnetPort("")); is && !r.owns(s) && northbound.Get[nb.LogicalSwitchPort](r.Northbound, translate.PodPortRef(port)) == nil {
		subnet, err := address.Subnet(ctx, r.Client, name)
		if err != nil {
			return err
		}
		if subnet != nil && subnet.Spec.Vlan != "" {
			return &address.Problem{Message: fmt.Sprintf("port name %s belongs to subnet %s: choose another name for the pod", port.Name, name)}
		}
	}
	lease, held := r.Allocator.Lookup(port.Name)
	isNodes, err := leases.PortIsNodes(ctx, r.Client, port.Name)
	switch {
	case err != nil:
		return err
	case held && leases.OfNode(lease):
		// The pod has no port: the node got its lease only after the pod's port was deleted.
	case !isNodes:
		return nil
	case held:
		err = r.free(ctx, port, "the name of the port belongs to a node")
	default:
		err = r.removePort(ctx, port)
	}
	if err != nil {
		return fmt.Errorf("leave port name %s to the node: %w", port.Name, err)
	}
	return &address.Problem{
		Message: fmt.Sprintf("port name %s belongs to a node: choose another name for the pod", port.Name),
		Subnets: []string{kubeovnv1.JoinSubnet},
	}
}

// onNode returns the pod, or the virtual machine, whose port name conflicts with the port name of a node that joins or is deleted.
func (r *Reconciler) onNode(_ context.Context, node client.Object) []reconcile.Request {
	name := kubeovnv1.NodePortName(node.GetName())
	_, known := r.ports.named(name)
	if lease, held := r.Allocator.Lookup(name); !known && (!held || leases.OfNode(lease)) {
		return nil
	}
	return []reconcile.Request{k8s.RequestOf(r.keeper.Port(name).Key())}
}
