// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/join"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// ReasonNoAddress is the reason of the event on a node that gets no allocation: the join subnet is full, or a pod or an IP object has the port
// name.
const ReasonNoAddress = "AddressNotAllocated"

// allocation returns the node's allocation on the join subnet. The error is ErrWaiting if the subnet is full, or if another holder has the port
// name. A released address requeues the node.
func (r *Reconciler) allocation(ctx context.Context, node *corev1.Node, subnet join.Subnet) (ipam.Allocation, error) {
	port := translate.NodePort(node.Name)
	allocation, err := r.allocations.Allocation(ctx, node.Name, port, subnet)
	switch {
	case err == nil:
		return allocation, nil
	case errors.Is(err, ipam.ErrExhausted):
		k8s.Warn(r.Recorder, node, ReasonNoAddress, join.Full(err, "deleted nodes"))
	case errors.Is(err, join.ErrNameTaken):
		k8s.Warn(r.Recorder, node, ReasonNoAddress, fmt.Sprintf(
			"port name %s is held by a pod, which loses it now, or by an IP object: delete the IP object if there is one of this name without a pod", port))
	default:
		return ipam.Allocation{}, err
	}
	return ipam.Allocation{}, fmt.Errorf("%w: %w", northbound.ErrWaiting, err)
}
