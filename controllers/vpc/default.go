// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package vpc

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
)

// CreateDefault creates the default Vpc if it does not exist. It does not change an existing one.
func CreateDefault(ctx context.Context, c client.Client) error {
	vpc := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: kubeovnv1.DefaultVpc}}
	if err := k8s.CreateMissing(ctx, c, vpc); err != nil {
		return fmt.Errorf("make the default VPC: %w", err)
	}
	return nil
}

// EventRecreated is the reason of the event on the default VPC that was deleted although it was in use.
const EventRecreated = "CreatedAgain"

// missing removes a VPC whose object does not exist. The default VPC is created again instead, with its last spec. Its router stays meanwhile.
func (r *Reconciler) missing(ctx context.Context, name string, in inputs) error {
	if name != kubeovnv1.DefaultVpc {
		return r.remove(ctx, name, in)
	}
	vpc := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: name}}
	last := r.lastDefault.Load()
	if last != nil {
		vpc.Spec = *last.DeepCopy()
	}
	if err := k8s.CreateMissing(ctx, r.Client, vpc); err != nil {
		return fmt.Errorf("create the default VPC again: %w", err)
	}
	if last != nil {
		k8s.Warn(r.Recorder, vpc, EventRecreated,
			"this VPC was deleted: it exists again with its last spec, and its pods keep their network. Labels and annotations of the deleted object are lost")
	}
	return nil
}
