// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientv1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// PatchPodCondition sets one condition of a pod and keeps the conditions of the kubelet and others.
func PatchPodCondition(ctx context.Context, pods clientv1.PodInterface, pod string, c corev1.PodCondition) error {
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.PodCondition{c}}})
	if err != nil {
		return fmt.Errorf("encode condition %s: %w", c.Type, err)
	}
	if _, err := pods.Patch(ctx, pod, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("set condition %s of pod %s: %w", c.Type, pod, err)
	}
	return nil
}
