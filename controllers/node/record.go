// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/address/iprecord"
	"github.com/kiln-net/kiln/internal/address/join"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// results are the keys of the annotations that annotate writes.
var results = kubeovnv1.Keys(kubeovnv1.AnnotationsOf(kubeovnv1.OnNode, kubeovnv1.RoleResult))

// annotate writes the port's settings to the node's annotations, for the agent, in one patch.
func (r *Reconciler) annotate(ctx context.Context, node *corev1.Node, subnet join.Subnet, allocation ipam.Allocation) error {
	network := kubeovnv1.PodNetwork{
		Allocated:     true,
		Addresses:     allocation.Addresses,
		MAC:           allocation.MAC,
		CIDRs:         subnet.CIDRs,
		Gateways:      subnet.Gateways,
		LogicalSwitch: kubeovnv1.JoinSubnet,
	}
	base := node.DeepCopy()
	if node.Annotations == nil {
		node.Annotations = map[string]string{}
	}
	maps.Copy(node.Annotations, network.Annotations())
	node.Annotations[kubeovnv1.AnnotationPortName.Key()] = translate.NodePort(node.Name)
	// The OVS system-id of a node is the node's name.
	node.Annotations[kubeovnv1.AnnotationChassis.Key()] = node.Name
	r.written.Store(node.Name, viewAnnotations(node))
	return client.IgnoreNotFound(k8s.Patch(ctx, r.Client, base, node))
}

// recordIP writes the node's IP object.
func (r *Reconciler) recordIP(ctx context.Context, node *corev1.Node, allocation ipam.Allocation, own addresses) error {
	ip := join.Object(translate.NodePort(node.Name), allocation)
	ip.Spec.PodName, ip.Spec.NodeName = node.Name, node.Name
	// Agents read other nodes' addresses here, because a Node object changes with every heartbeat.
	ip.Annotations = map[string]string{
		kubeovnv1.AnnotationNodeAddresses.Key():    ipfamily.Join(own.own),
		kubeovnv1.AnnotationClaimedAddresses.Key(): ipfamily.Join(own.claimed),
	}
	if len(validation.IsValidLabelValue(node.Name)) == 0 {
		ip.Labels[kubeovnv1.LabelNode] = node.Name
	}
	return iprecord.Write(ctx, r.Client, ip, iprecord.Any)
}

// deleteIP deletes a node's IP object. It does not delete another owner's IP object of that name.
func (r *Reconciler) deleteIP(ctx context.Context, port, node string) error {
	return iprecord.Delete(ctx, r.Client, port, func(ip *kubeovnv1.IP) bool { return ip.Spec.Namespace == "" && ip.Spec.NodeName == node })
}
