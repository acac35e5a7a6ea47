// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package address

import (
	corev1 "k8s.io/api/core/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// Claim is what a pod is and requests for its port. An invalid request is left out of it.
type Claim struct {
	kubeovnv1.PodRequest
	Port kubeovnv1.Port
	// Node is the pod's.
	Node string
	// Mirror: a kubelet made the pod, and its requests do not count.
	Mirror bool
	// Workload is the kind of workload that creates the pod again by name, a value of IPSpec.PodType; empty if none does.
	Workload string

	invalid error // a *Problem: the first invalid request
}

// ClaimOf returns the claim of a pod for a port.
func ClaimOf(port kubeovnv1.Port, pod *corev1.Pod, workload string) Claim {
	request, err := kubeovnv1.ParsePodRequestOf(pod.Annotations, port.Provider)
	if err != nil {
		err = &Problem{Message: err.Error()}
	}
	return Claim{request, port, pod.Spec.NodeName, kubeovnv1.IsMirror(pod.Annotations), workload, err}
}
