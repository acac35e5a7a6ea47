// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ippool

import (
	"context"
	"fmt"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/validation"
)

// maxNamed limits the number of addresses in a message.
const maxNamed = 5

// patchStatus writes a pool's use, its last valid spec, the problem of its spec, and the conflict of its address set to its status.
func (r *Reconciler) patchStatus(ctx context.Context, pool *kubeovnv1.IPPool, done result) error {
	base := pool.DeepCopy()
	usage, status := r.Allocator.PoolUsage(pool.Spec.Subnet, pool.Name), &pool.Status
	v4, v6 := usage.IPv4(), usage.IPv6()
	status.V4AvailableIPs, status.V4AvailableIPRange = v4.Available, v4.AvailableRanges
	status.V4UsingIPs, status.V4UsingIPRange = v4.Using, v4.UsingRanges
	status.V6AvailableIPs, status.V6AvailableIPRange = v6.Available, v6.AvailableRanges
	status.V6UsingIPs, status.V6UsingIPRange = v6.Using, v6.UsingRanges
	if done.valid { // in the same patch as the condition Validated
		status.ValidatedSpec = pool.Spec.DeepCopy()
	}
	ready := k8s.Ready(done.err, errWaiting)
	switch {
	case pool.DeletionTimestamp != nil:
		ready = r.blocked(pool)
	case done.problem != nil:
		ready = k8s.NotValid(done.problem)
		if status.ValidatedSpec != nil && done.problem.Reason != validation.ReasonSubnetMissing {
			ready.Message += "; the last valid spec stays applied"
		}
	case done.unnamed != nil:
		ready = k8s.NotReady(done.unnamed.Reason, done.unnamed.Message)
	}
	k8s.SetConditions(&status.Conditions, pool.Generation, k8s.Validated(done.problem), ready)
	k8s.WarnAnew(r.Recorder, pool, base.Status.Conditions, status.Conditions, kubeovnv1.ConditionValidated)
	if done.unnamed != nil && !k8s.SameMessage(base.Status.Conditions, status.Conditions, kubeovnv1.ConditionReady) {
		k8s.Warn(r.Recorder, pool, done.unnamed.Reason, done.unnamed.Message)
	}
	return k8s.PatchStatus(ctx, r.Client, base, pool)
}

// blocked returns the condition that lists the held addresses of a deleted pool, which block its deletion. No pod gets new addresses from
// such a pool.
func (r *Reconciler) blocked(pool *kubeovnv1.IPPool) metav1.Condition {
	ranges, _ := ipfamily.ParseRanges(k8s.AppliedPool(pool).Spec.IPs)
	held := r.Allocator.Holders(pool.Spec.Subnet, func(a netip.Addr) bool { return ipfamily.InAny(ranges, a) })
	return k8s.NotReady(validation.ReasonAddressesInUse,
		fmt.Sprintf("deleted once its addresses are free: %d in use: %s", len(held), k8s.Some(held, maxNamed)))
}
