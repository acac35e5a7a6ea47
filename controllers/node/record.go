// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"maps"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipam"
	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// managedAnnotations are those that annotate writes.
var managedAnnotations = []kubeovnv1.Annotation{
	kubeovnv1.AnnotationAllocated,
	kubeovnv1.AnnotationIPAddress,
	kubeovnv1.AnnotationMACAddress,
	kubeovnv1.AnnotationCIDR,
	kubeovnv1.AnnotationGateway,
	kubeovnv1.AnnotationLogicalSwitch,
	kubeovnv1.AnnotationPortName,
	kubeovnv1.AnnotationChassis,
}

// Labels of IP objects, as users of Kube-OVN select by them.
const (
	labelSubnet = "ovn.kubernetes.io/subnet"
	labelNode   = "ovn.kubernetes.io/node-name"
)

// annotate tells the node's agent what its port is, in one patch.
func (r *Reconciler) annotate(ctx context.Context, node *corev1.Node, join joinSubnet, lease ipam.Lease) error {
	network := kubeovnv1.PodNetwork{
		Allocated:     true,
		Addresses:     lease.Addresses,
		MAC:           lease.MAC,
		CIDRs:         join.cidrs,
		Gateways:      join.gateways,
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
	return client.IgnoreNotFound(k8s.Patch(ctx, r.Client, base, node))
}

// recordIP writes the node's IP object.
func (r *Reconciler) recordIP(ctx context.Context, node *corev1.Node, lease ipam.Lease) error {
	want := &kubeovnv1.IP{
		ObjectMeta: metav1.ObjectMeta{Name: translate.NodePort(node.Name), Labels: labelsOf(node.Name, lease.Subnet)},
		Spec: kubeovnv1.IPSpec{
			PodName:    node.Name,
			NodeName:   node.Name,
			Subnet:     lease.Subnet,
			IPAddress:  ipfamily.Join(lease.Addresses),
			MACAddress: lease.MAC.String(),
		},
	}
	want.Spec.V4IPAddress = ofFamily(lease.Addresses, ipfamily.IPv4)
	want.Spec.V6IPAddress = ofFamily(lease.Addresses, ipfamily.IPv6)

	ip := &kubeovnv1.IP{}
	err := r.Client.Get(ctx, client.ObjectKeyFromObject(want), ip)
	if apierrors.IsNotFound(err) {
		err = client.IgnoreAlreadyExists(r.Client.Create(ctx, want, k8s.FieldOwner))
		if err != nil {
			return fmt.Errorf("create IP %s: %w", want.Name, err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("get IP %s: %w", want.Name, err)
	}
	base := ip.DeepCopy()
	if ip.Spec.Subnet != want.Spec.Subnet || ip.Spec.IPAddress != want.Spec.IPAddress || ip.Spec.MACAddress != want.Spec.MACAddress {
		return r.replaceIP(ctx, ip, want)
	}
	ip.Spec = want.Spec
	if ip.Labels == nil {
		ip.Labels = map[string]string{}
	}
	maps.Copy(ip.Labels, want.Labels)
	return k8s.Patch(ctx, r.Client, base, ip)
}

// replaceIP writes an IP object anew, since addresses of one cannot change.
func (r *Reconciler) replaceIP(ctx context.Context, have, want *kubeovnv1.IP) error {
	if err := client.IgnoreNotFound(r.Client.Delete(ctx, have, client.Preconditions{UID: &have.UID})); err != nil {
		return fmt.Errorf("delete IP %s: %w", have.Name, err)
	}
	if err := client.IgnoreAlreadyExists(r.Client.Create(ctx, want, k8s.FieldOwner)); err != nil {
		return fmt.Errorf("create IP %s: %w", want.Name, err)
	}
	return nil
}

// deleteIP deletes a node's IP object. Any other object of that name is left alone.
func (r *Reconciler) deleteIP(ctx context.Context, port, node string) error {
	ip := &kubeovnv1.IP{}
	if err := r.Client.Get(ctx, client.ObjectKey{Name: port}, ip); apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("get IP %s: %w", port, err)
	}
	if ip.Spec.Namespace != "" || ip.Spec.NodeName != node {
		return nil
	}
	if err := client.IgnoreNotFound(r.Client.Delete(ctx, ip)); err != nil {
		return fmt.Errorf("delete IP %s: %w", port, err)
	}
	return nil
}

// labelsOf leaves out a node's name that is too long for a label.
func labelsOf(node, subnet string) map[string]string {
	labels := map[string]string{labelSubnet: subnet, subnet: "", kubeovnv1.LabelReserved: kubeovnv1.ReservedForPod}
	if len(validation.IsValidLabelValue(node)) == 0 {
		labels[labelNode] = node
	}
	return labels
}

// ofFamily is the address of one family, or empty.
func ofFamily(addrs []netip.Addr, family ipfamily.Family) string {
	for _, a := range addrs {
		if ipfamily.Of(a) == family {
			return a.String()
		}
	}
	return ""
}
