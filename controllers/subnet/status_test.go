// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/subnet"
)

// blind fails to list the CIDRs of Services while its field `is` is true.
type blind struct {
	client.Reader
	is    atomic.Bool
	tries atomic.Int32
}

func (b *blind) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if _, cidrs := list.(*networkingv1.ServiceCIDRList); cidrs && b.is.Load() {
		b.tries.Add(1)
		return errors.New("cannot see")
	}
	return b.Reader.List(ctx, list, options...)
}

// TestASpecThatCouldNotBeCheckedIsNotSaidToBeRight: agents create routes for a validated spec, so the status must not report an unchecked
// one as valid.
func TestASpecThatCouldNotBeCheckedIsNotSaidToBeRight(t *testing.T) {
	n := start(t)
	b := &blind{}
	n.runWith(cache.Options{}, func(r *subnet.Reconciler) { b.Reader, r.ServiceCIDRs.Reader = r.ServiceCIDRs.Reader, b })
	b.is.Store(true)
	n.Create(&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/24"}})
	n.Eventually(func() string {
		if b.tries.Load() < 4 { // each try would have written a status
			return "it was not tried"
		}
		return ""
	})
	if got := n.subnet("s").Status.Conditions; len(got) > 0 {
		t.Errorf("the subnet could not be checked, and says %+v", got)
	}
	b.is.Store(false)
	n.condition("s", kubeovnv1.ConditionValidated, metav1.ConditionTrue)
}
