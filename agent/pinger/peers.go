// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pinger

import (
	"cmp"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Peer is a pod of kube-ovn-pinger and its node.
type Peer struct {
	Node string
	// PodIPs and HostIPs are the addresses of the pod and of its node, in the order of the pod's status.
	PodIPs, HostIPs []netip.Addr
}

// peers returns the pods that the pod on a node pings, one for each other node, and at most count. The nodes form a ring in the order of the
// hashes of their names, and each pings the next ones. So every node is pinged by as many others, and a node that joins or leaves changes the
// targets of as many nodes only.
func peers(node string, pods []corev1.Pod, count int) []Peer {
	byNode := map[string]*corev1.Pod{}
	for i := range pods {
		pod := &pods[i]
		if pod.Spec.NodeName == "" || pod.Spec.NodeName == node || pod.Status.PodIP == "" || !running(pod) {
			continue
		}
		if before := byNode[pod.Spec.NodeName]; before == nil || older(before, pod) {
			byNode[pod.Spec.NodeName] = pod
		}
	}
	nodes := make([]string, 0, len(byNode))
	for name := range byNode {
		nodes = append(nodes, name)
	}
	slices.SortFunc(nodes, func(a, b string) int { return after(node, a, b) })
	list := make([]Peer, 0, min(count, len(nodes)))
	for _, name := range nodes[:min(count, len(nodes))] {
		list = append(list, peerOf(byNode[name]))
	}
	return list
}

// running reports whether the pod has a network: it also has one while its node does not answer.
func running(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp.IsZero() && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}

func older(a, b *corev1.Pod) bool {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name)) < 0
}

// after compares the distances of two nodes from another one on the ring.
func after(from, a, b string) int {
	start := position(from)
	return cmp.Or(cmp.Compare(position(a)-start, position(b)-start), strings.Compare(a, b))
}

// position is a node's place on the ring.
func position(node string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(node)) // never fails
	return mixed(h.Sum64())
}

// mixed spreads the hashes of names that differ in the last characters only (the finalizer of MurmurHash3).
func mixed(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

func peerOf(pod *corev1.Pod) Peer {
	p := Peer{Node: pod.Spec.NodeName}
	for _, ip := range pod.Status.PodIPs {
		p.PodIPs = appendAddr(p.PodIPs, ip.IP)
	}
	for _, ip := range pod.Status.HostIPs {
		p.HostIPs = appendAddr(p.HostIPs, ip.IP)
	}
	return p
}

func appendAddr(list []netip.Addr, text string) []netip.Addr {
	if a, err := netip.ParseAddr(text); err == nil {
		return append(list, a.Unmap())
	}
	return list
}

// ofFamily returns the first of the addresses that has the family of a; the zero Addr if there is none.
func ofFamily(list []netip.Addr, a netip.Addr) netip.Addr {
	for _, b := range list {
		if b.Is4() == a.Is4() {
			return b
		}
	}
	return netip.Addr{}
}
