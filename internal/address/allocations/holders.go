// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package allocations has rules about the holders of allocations: nodes, pods of StatefulSets, and reservations of users.
package allocations

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// OfNode reports whether an allocation belongs to a node: the join subnet has no pods.
func OfNode(allocation ipam.Allocation) bool { return allocation.Subnet == kubeovnv1.JoinSubnet }

// StatefulSetOf returns the StatefulSet that a pod of this name would belong to, and the pod's ordinal. The ordinal is negative if no
// StatefulSet creates such names.
func StatefulSetOf(pod types.NamespacedName) (types.NamespacedName, int) {
	i := strings.LastIndexByte(pod.Name, '-')
	if i < 1 {
		return types.NamespacedName{}, -1
	}
	ordinal, err := strconv.Atoi(pod.Name[i+1:])
	if err != nil || ordinal < 0 || strconv.Itoa(ordinal) != pod.Name[i+1:] {
		return types.NamespacedName{}, -1
	}
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name[:i]}, ordinal
}

// OnPodNetwork reports whether a pod uses the pod network: it is scheduled, not finished, and not on the host network.
func OnPodNetwork(pod *corev1.Pod) bool {
	finished := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	return !pod.Spec.HostNetwork && pod.Spec.NodeName != "" && !finished
}

// labelMigration is on the target pod of a migration (KubeVirt, MigrationJobLabel).
const labelMigration = "kubevirt.io/migrationJobUID"

// CompareRunners orders the pods of a virtual machine by age: the first one on the pod network has the port, the others are the targets of migrations. Of pods of the same
// second, the target of a migration is last, which has a label; names decide between others, so that each pass has the same order.
func CompareRunners(a, b *corev1.Pod) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Labels[labelMigration], b.Labels[labelMigration]),
		cmp.Compare(a.Name, b.Name))
}

// PortIsNodes reports whether the name of a port belongs to an existing node.
func PortIsNodes(ctx context.Context, reader client.Reader, port string) (bool, error) {
	name, ok := strings.CutPrefix(port, kubeovnv1.NodePortName(""))
	if !ok {
		return false, nil
	}
	err := reader.Get(ctx, client.ObjectKey{Name: name}, &corev1.Node{}, client.UnsafeDisableDeepCopy)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("get node %s: %w", name, err)
	}
	return err == nil, nil
}

// IsReservation reports whether an IP object reserves its addresses on request of a user, whether its pod exists or not.
func IsReservation(ip *kubeovnv1.IP) bool {
	if ip == nil || ip.DeletionTimestamp != nil {
		return false
	}
	if reserved, labelled := ip.Labels[kubeovnv1.LabelReserved]; labelled {
		return reserved == kubeovnv1.ReservedAlways
	}
	_, recorded := ip.Labels[kubeovnv1.LabelNode]
	return !recorded
}

// NamesOther reports whether an IP object names the owner of another port that has the same name as the port.
func NamesOther(ip *kubeovnv1.IP, port kubeovnv1.Port) bool {
	if ip == nil {
		return false
	}
	named, valid := kubeovnv1.NamedPort(ip.Spec.Namespace, ip.Spec.PodName, ip.Name)
	return valid && named != port
}

// RequestOf returns the allocation request of an IP object, or an error that tells its user what to change.
func RequestOf(ip *kubeovnv1.IP) (ipam.Request, error) {
	request := ipam.Request{Subnet: ip.Spec.Subnet, AnyPool: true}
	if request.Subnet == "" {
		return request, errors.New("spec.subnet is empty: say which subnet to reserve addresses of")
	}
	for _, list := range []string{ip.Spec.IPAddress, ip.Spec.V4IPAddress, ip.Spec.V6IPAddress} {
		addresses, err := ipfamily.ParseAddrs(list)
		if err != nil {
			return request, err
		}
		for _, address := range addresses {
			if !slices.Contains(request.Addresses, address) {
				request.Addresses = append(request.Addresses, address)
			}
		}
	}
	if ip.Spec.MACAddress != "" {
		mac, err := kubeovnv1.ParseMAC(ip.Spec.MACAddress)
		if err != nil {
			return request, fmt.Errorf("spec.macAddress: %w", err)
		}
		request.MAC = mac
	}
	for _, address := range request.Addresses { // other families get no address; without addresses every family gets one
		request.Families = append(request.Families, ipfamily.Of(address))
	}
	return request, nil
}

// ThatRetain selects the IP objects that retain addresses without a pod. They are few.
func ThatRetain() client.ListOption {
	requirement, err := labels.NewRequirement(kubeovnv1.LabelReserved, selection.NotEquals, []string{kubeovnv1.ReservedForPod})
	if err != nil {
		panic(err) // impossible with these constants
	}
	return client.MatchingLabelsSelector{Selector: labels.NewSelector().Add(*requirement)}
}
