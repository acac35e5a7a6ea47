// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package leases knows who holds the addresses of a lease: the names of ports and of their pods, the leases that stay while their pod is
// absent, and the reservations of users.
package leases

import (
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipam"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// KeyOf returns the reconcile key of a port: its pod's, whether that exists or not, or else the port's name.
func KeyOf(port string) types.NamespacedName {
	if namespace, name, ok := translate.PodOfPort(port); ok {
		return types.NamespacedName{Namespace: namespace, Name: name}
	}
	return types.NamespacedName{Name: port}
}

// PortOf is the inverse of KeyOf.
func PortOf(key types.NamespacedName) string {
	if key.Namespace == "" {
		return key.Name
	}
	return translate.PodPort(key.Namespace, key.Name)
}

// OfNode reports whether a lease belongs to a node: the join subnet has no pods.
func OfNode(lease ipam.Lease) bool { return lease.Subnet == kubeovnv1.JoinSubnet }

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
