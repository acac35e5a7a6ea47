// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/pod/address"
	"github.com/kiln-net/kiln/internal/address/allocations"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/podset"
)

// Port names of pods can conflict with each other (kubeovnv1.Port): the first port keeps the name, because pods come and go, and a pod that runs must not lose its
// network. An IP object that reserves addresses names the port that gets them, if two can have its name.

// awaitsName reports whether another port has the name of a port. Then the port is left as it is, because its allocation, its IP object and its place on the waiting list
// have the name as their key and belong to the other one. A pod waits until the other port is removed; if the pod was deleted, it stops waiting.
func (r *Reconciler) awaitsName(s *subject) bool {
	named, _ := r.ports.named(s.port.Name)
	holder := cmp.Or(r.keeper.Retained(s.port.Name), named.Port)
	if s.port.Owner == "" || holder.Owner == "" || holder == s.port {
		return false
	}
	r.leaveSets(podset.Key{NamespacedName: s.port.Key(), Provider: s.port.Provider}, s.pod)
	switch {
	case s.pod == nil || !allocations.OnPodNetwork(s.pod) || s.pod.DeletionTimestamp != nil:
		r.ports.drop(s.port)
	case r.ports.wait(s.port, s.pod.UID):
		r.latencies.end(s.pod.UID)
		k8s.Warn(r.Recorder, s.pod, reasonNoAddress, fmt.Sprintf("port name %s belongs to another pod: choose another name for the pod", s.port.Name))
	}
	return true
}

// Port names of pods, `<pod>.<namespace>`, and of nodes, `node-<node>`, can conflict, and so can those of underlay subnets, `localnet.<subnet>`. The node has precedence: a tenant must
// not keep a node from joining.

// checkName returns a *address.Problem for a new port with the name of an underlay subnet's port to its physical network, or a name that an IP object has for another
// port. held: the name has an allocation.
func (r *Reconciler) checkName(ctx context.Context, port kubeovnv1.Port, ip *kubeovnv1.IP, held bool) error {
	if name, is := strings.CutPrefix(port.Name, translate.LocalnetPort("")); is && northbound.Get[nb.LogicalSwitchPort](r.Northbound, translate.PodPortRef(port)) == nil {
		subnet, err := address.Subnet(ctx, r.Client, name)
		if err != nil {
			return err
		}
		if subnet != nil && subnet.Spec.Vlan != "" {
			return &address.Problem{Message: fmt.Sprintf("port name %s belongs to subnet %s: choose another name for the pod", port.Name, name)}
		}
	}
	if (held || allocations.IsReservation(ip)) && allocations.NamesOther(ip, port) {
		return &address.Problem{Message: fmt.Sprintf("IP %s has the port name for another pod: choose another name for the pod", ip.Name)}
	}
	return nil
}

// yieldName removes a port whose name belongs to a node, and returns a *address.Problem for it. The pod is retried when the node's address on the join subnet becomes
// free. held: the name has an allocation.
func (r *Reconciler) yieldName(ctx context.Context, port kubeovnv1.Port, allocation ipam.Allocation, held bool) error {
	isNodes, err := allocations.PortIsNodes(ctx, r.Client, port.Name)
	switch {
	case err != nil:
		return err
	case held && allocations.OfNode(allocation):
		// The pod has no port: the node got its allocation only after the pod's port was deleted.
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
	if allocation, held := r.Allocator.Lookup(name); !known && (!held || allocations.OfNode(allocation)) {
		return nil
	}
	return []reconcile.Request{k8s.RequestOf(r.keeper.Port(name).Key())}
}
