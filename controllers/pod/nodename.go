// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/leases"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// Port names of pods, `<pod>.<namespace>`, and of nodes, `node-<node>`, can conflict. The node has precedence: a tenant must not keep a
// node from joining.

// yieldToNode removes the port of a pod whose port name belongs to a node. It then returns a *problem, and nil for other pods. The pod is
// retried when the node's address on the join subnet becomes free.
func (r *Reconciler) yieldToNode(ctx context.Context, key types.NamespacedName) error {
	port := leases.PortOf(key)
	lease, held := r.Allocator.Lookup(port)
	isNodes, err := r.isNodes(ctx, port)
	switch {
	case err != nil:
		return err
	case held && leases.OfNode(lease):
		// The pod has no port: the node got its lease only after the pod's port was deleted.
	case !isNodes:
		return nil
	case held:
		err = r.freeLease(ctx, key, "the name of the port belongs to a node")
	default:
		err = r.removePort(ctx, key)
	}
	if err != nil {
		return fmt.Errorf("leave port name %s to the node: %w", port, err)
	}
	return &problem{
		message: fmt.Sprintf("port name %s belongs to a node: choose another name for the pod", port),
		subnets: []string{kubeovnv1.JoinSubnet},
	}
}

// isNodes reports whether a port name belongs to an existing node.
func (r *Reconciler) isNodes(ctx context.Context, port string) (bool, error) {
	name, ok := strings.CutPrefix(port, translate.NodePort(""))
	if !ok {
		return false, nil
	}
	err := r.Client.Get(ctx, client.ObjectKey{Name: name}, &corev1.Node{}, client.UnsafeDisableDeepCopy)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("get node %s: %w", name, err)
	}
	return err == nil, nil
}

// onNode returns the pod, or the virtual machine, whose port name conflicts with the port name of a node that joins or is deleted.
func (r *Reconciler) onNode(ctx context.Context, node client.Object) []reconcile.Request {
	port := translate.NodePort(node.GetName())
	namespace, name, ok := translate.PodOfPort(port)
	if !ok {
		return nil
	}
	key := types.NamespacedName{Namespace: namespace, Name: name}
	lease, held := r.Allocator.Lookup(port)
	if held && !leases.OfNode(lease) || r.Client.Get(ctx, key, &corev1.Pod{}, client.UnsafeDisableDeepCopy) == nil {
		return []reconcile.Request{k8s.RequestOf(key)}
	}
	return nil
}
