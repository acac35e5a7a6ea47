// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// The cache of a new leader may lag behind the ports that the previous leader has created. Without a lookup in the API server, such a pod
// would look deleted: it would lose its port, and another pod could get its address.

// noteCacheMisses records the ports whose pods are missing in the cache.
func (r *Reconciler) noteCacheMisses(ctx context.Context) {
	pod := &corev1.Pod{}
	for _, owner := range r.Northbound.Owners(translate.KindPod) {
		key := types.NamespacedName{Namespace: owner.Namespace, Name: owner.Name}
		if err := r.Client.Get(ctx, key, pod, client.UnsafeDisableDeepCopy); err != nil {
			r.cacheMisses.Store(key, nil)
		}
	}
}

// existsLive reports whether the API server has a pod that is missing in the cache. It looks up only pods that noteCacheMisses has recorded.
func (r *Reconciler) existsLive(ctx context.Context, key types.NamespacedName) (bool, error) {
	if _, missing := r.cacheMisses.Load(key); !missing {
		return false, nil
	}
	_, err := r.pods.Namespace(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		r.cacheMisses.Delete(key)
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("ask the API server for the pod: %w", err)
	}
	return true, nil
}
