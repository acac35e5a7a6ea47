// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cniserver

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kiln-net/kiln/api/v1"

	"github.com/kiln-net/kiln/agent/ovs"
	"github.com/kiln-net/kiln/agent/sandbox"
	"github.com/kiln-net/kiln/cni/wire"
)

// needsProbeLink reports whether the node reaches a pod through a probe link. It does in a custom VPC, whose addresses may be unknown or
// used otherwise on the node. The kubelet uses the addresses of the first network only.
func needsProbeLink(network v1.PodNetwork) bool {
	return network.Provider == v1.ProviderOVN && network.LogicalRouter != "" && network.LogicalRouter != v1.DefaultVpc
}

// probePorts returns the ports of a pod to which the kubelet connects through a probe link; nil if the pod needs no such link. It reads
// the pod from the API server because the watch of pods has metadata only. Only pods of custom VPCs cost this request.
func (s *Server) probePorts(ctx context.Context, pod *metav1.PartialObjectMetadata, network v1.PodNetwork) ([]uint16, error) {
	if !needsProbeLink(network) {
		return nil, nil
	}
	whole, err := s.Pods.read(ctx, client.ObjectKeyFromObject(pod), pod.UID)
	if err != nil {
		return nil, err
	}
	return s.Probes.Ports(whole, network.Addresses), nil
}

// read returns the pod of that UID from the API server.
func (p *Pods) read(ctx context.Context, key types.NamespacedName, uid types.UID) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	err := p.api.Get(ctx, key, pod)
	switch {
	case apierrors.IsNotFound(err) || err == nil && pod.UID != uid:
		return nil, podDeletedError(fmt.Sprintf("pod %s (%s) was deleted", key, uid))
	case err != nil:
		return nil, fmt.Errorf("read the probes of pod %s: %w", key, err)
	}
	return pod, nil
}

// probeLink returns the probe link that an attachment needs; nil if none of its ports is probed.
func probeLink(r wire.Request, a ovs.Attachment) *sandbox.Probe {
	if len(a.ProbePorts) == 0 {
		return nil
	}
	return &sandbox.Probe{NetNS: r.NetNS, HostName: sandbox.ProbeName(r.ContainerID, r.IfName), Addresses: a.Addresses}
}
