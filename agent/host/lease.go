// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/kiln-net/kiln/internal/gateway"
)

// Lease sends the controller heartbeats of this node as a gateway: it renews a Lease object while the node may be a gateway of a subnet
// or a VPC and its network serves. Other nodes write nothing, except to release a Lease that they held before.
type Lease struct {
	Client    client.Client
	Node      string
	Namespace string
	// Wanted reports whether the node may be a gateway, and whether this is known yet. Ready returns nil while its network serves and its
	// Open vSwitch forwards.
	Wanted func() (wanted, known bool)
	Ready  func(context.Context) error

	released bool   // the Lease is released, or never existed
	failed   string // the last step's error
}

// Start renews the Lease until ctx ends (manager.Runnable). The last renewal extends it until the next agent of this node can renew it.
func (l *Lease) Start(ctx context.Context) error {
	tick := time.NewTicker(gateway.RenewEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			l.step(context.WithoutCancel(ctx), gateway.RestartTolerance)
			return nil
		case <-tick.C:
			l.step(ctx, gateway.Tolerance)
		}
	}
}

// step renews the Lease, or releases it if the node is no longer a gateway: with an expired Lease, the node would not be chosen again.
// While the network does not serve, it does nothing, so that the Lease expires.
func (l *Lease) step(ctx context.Context, tolerance time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, 2*gateway.RenewEvery)
	defer cancel()
	wanted, known := l.Wanted()
	if !known || !wanted && l.released {
		return
	}
	err := l.Ready(ctx)
	if err != nil && !wanted {
		return // a later step releases the Lease
	}
	if err == nil {
		spec := map[string]any{"renewTime": nil}
		if wanted {
			spec = map[string]any{
				"holderIdentity": l.Node, "leaseDurationSeconds": int(tolerance / time.Second), "renewTime": metav1.NowMicro(),
			}
		}
		err = l.patch(ctx, spec)
	}
	if err == nil {
		l.released, l.failed = !wanted, ""
	} else if err.Error() != l.failed {
		l.failed = err.Error()
		log.FromContext(ctx).Error(err, "cannot say that this node serves as a gateway")
	}
}

func (l *Lease) patch(ctx context.Context, spec map[string]any) error {
	data, err := json.Marshal(map[string]any{"spec": spec})
	if err != nil {
		return fmt.Errorf("write the Lease: %w", err)
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: l.Namespace, Name: gateway.LeasePrefix + l.Node}}
	err = l.Client.Patch(ctx, lease, client.RawPatch(types.MergePatchType, data))
	if !apierrors.IsNotFound(err) {
		if err != nil {
			return fmt.Errorf("renew Lease %s: %w", lease.Name, err)
		}
		return nil
	}
	if spec["renewTime"] == nil {
		return nil
	}
	node := &corev1.Node{}
	if err := l.Client.Get(ctx, types.NamespacedName{Name: l.Node}, node); err != nil {
		return fmt.Errorf("read node %s: %w", l.Node, err)
	}
	if err := json.Unmarshal(data, lease); err != nil {
		return fmt.Errorf("read the Lease: %w", err)
	}
	lease.Labels = map[string]string{gateway.LeaseLabel: ""}
	lease.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}
	if err := l.Client.Create(ctx, lease); err != nil {
		return fmt.Errorf("create Lease %s: %w", lease.Name, err)
	}
	return nil
}
