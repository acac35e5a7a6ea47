// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// A reservation and the pod that gets its port have two keys, and are not reconciled at the same time: the reservation would free the pod's address.
func TestAReservationWaitsForItsPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &Reconciler{} // without an allocator, a pass of the reservation would panic
		unlock, err := r.inUse.Lock(t.Context(), "web-0.shop")
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error)
		go func() {
			_, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: "web-0.shop"}})
			ended <- err
		}()
		synctest.Wait()
		select {
		case err := <-ended:
			t.Fatalf("the pass of the reservation did not wait, and ended with %v", err)
		default:
		}
		port := kubeovnv1.NewPort("shop", "web-0", kubeovnv1.ProviderOVN)
		r.ports.own(&subject{port: port}, kubeovnv1.Port{})
		unlock()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
