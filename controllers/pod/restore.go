// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/allocations"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// Restore fills the allocator before any allocation (retention.Keeper.Restore). live reads from the API server.
func (r *Reconciler) Restore(ctx context.Context, live client.Reader) error {
	if err := r.restorePorts(ctx); err != nil {
		return err
	}
	if err := r.Vips.Wait(ctx); err != nil { // without all Vips, a port would lose shared addresses for a moment
		return err
	}
	return r.keeper.Restore(ctx, live)
}

// restorePorts records the ports of pods, and the addresses of pods of custom VPCs that are already published. It also records the ports whose pods are missing
// in the cache, which may lag behind the ports that the previous leader has created. Without a lookup in the API server (existsLive), such a pod
// would look deleted: it would lose its port, and another pod could get its address.
func (r *Reconciler) restorePorts(ctx context.Context) error {
	var pods corev1.PodList
	if err := r.Client.List(ctx, &pods, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	northbound.Each(r.Northbound, translate.KindPod, func(owner desired.Owner, row *nb.LogicalSwitchPort) {
		if allocation, ok := translate.ReadPortAllocation(row); ok {
			if port, is := kubeovnv1.NamedPort(owner.Namespace, owner.Name, row.Name); is {
				r.ports.set(port, func(h *holding) { h.pod, h.machine = types.UID(allocation.UID), allocation.UID == "" })
			}
		}
	})
	cached := make(map[types.NamespacedName]bool, len(pods.Items))
	for i := range pods.Items {
		s := r.subject(&pods.Items[i])
		cached[client.ObjectKeyFromObject(s.pod)] = true
		if !allocations.OnPodNetwork(s.pod) {
			continue
		}
		if r.restoresName(s) {
			r.ports.set(s.port, func(h *holding) { h.machine = s.machine != "" })
		} else {
			r.ports.own(s, kubeovnv1.Port{})
		}
		vpc := s.pod.Annotations[kubeovnv1.AnnotationLogicalRouter.Key()]
		if vpc == "" || vpc == kubeovnv1.DefaultVpc || !s.published {
			continue
		}
		if network, err := kubeovnv1.ParsePodNetworkOf(s.pod.Annotations, s.port.Provider); err == nil {
			r.addresses.Note(s.port.Name, vpc, s.pod.Spec.NodeName, network.Addresses)
		}
	}
	for _, owner := range r.Northbound.Owners(translate.KindPod) {
		if key := (types.NamespacedName{Namespace: owner.Namespace, Name: owner.Name}); !cached[key] {
			r.cacheMisses.Store(key, nil)
		}
	}
	return nil
}

// restoresName reports whether a pod had the name of its port before the start, but not in the northbound database: the event of a new pod may have come before.
func (r *Reconciler) restoresName(s *subject) bool {
	h, known := r.ports.named(s.port.Name)
	return known && h.Port != s.port && s.published && northbound.Get[nb.LogicalSwitchPort](r.Northbound, translate.PodPortRef(h.Port)) == nil
}
