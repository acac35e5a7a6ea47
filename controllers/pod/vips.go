// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"slices"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/pod/address"
	"github.com/kiln-net/kiln/internal/address/vipusers"
	"github.com/kiln-net/kiln/internal/k8s"
)

// onVip wakes the waiting pods if a Vip changes, and enqueues the pods that share it.
func (r *Reconciler) onVip() handler.EventHandler {
	changed := func(vip *kubeovnv1.Vip, q k8s.Queue) {
		r.pending.wakeAll()
		for _, user := range r.Vips.UsersOf(vip.Name) {
			if user.Use&vipusers.Shared != 0 {
				q.Add(ctrl.Request{NamespacedName: user.Port.Key()})
			}
		}
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q k8s.Queue) { changed(e.Object.(*kubeovnv1.Vip), q) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q k8s.Queue) { changed(e.Object.(*kubeovnv1.Vip), q) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q k8s.Queue) {
			before, after := e.ObjectOld.(*kubeovnv1.Vip), e.ObjectNew.(*kubeovnv1.Vip)
			if k8s.ViewVip(before) != k8s.ViewVip(after) || !slices.Equal(address.VipAddresses(before), address.VipAddresses(after)) {
				changed(after, q)
				return
			}
			was, _ := address.WithoutAddress(before)
			if is, _ := address.WithoutAddress(after); was != is {
				r.pending.wakeAll()
			}
		},
	}
}

// followVips requeues a pod when it starts or stops sharing a Vip.
func (r *Reconciler) followVips() {
	r.Vips.Notify(func(_ string, user vipusers.User) {
		if user.Use&vipusers.Shared != 0 {
			r.pending.AddKey(user.Port.Key())
		}
	})
}
