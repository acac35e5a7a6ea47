// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package transit

import (
	"context"
	"errors"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound"
)

// Reasons of the condition TransitReady, and of events.
const (
	// ReasonCarried: a node forwards the traffic.
	ReasonCarried = "Carried"
	// ReasonNoNode: no node is up.
	ReasonNoNode = "NoNodeServes"
	// ReasonNoAddress: the join subnet is full.
	ReasonNoAddress = "AddressNotAllocated"
	// ReasonLinkAddress: a subnet or peering of the VPC contains an address of the link to the gateway router.
	ReasonLinkAddress = "LinkAddressTaken"
	// ReasonMoved is the event of a failover from a node that is down.
	ReasonMoved = "TransitMoved"
)

// patchStatus writes status.transit and its condition. If the rows could not be committed, the status keeps the nodes of the
// committed rows.
func (r *Reconciler) patchStatus(ctx context.Context, in inputs, applied error) error {
	vpc := in.vpc
	base := vpc.DeepCopy()
	if applied == nil {
		vpc.Status.Transit = &kubeovnv1.VpcTransit{Node: in.pair.Active, Standby: in.pair.Standby}
		for _, address := range in.allocation.Addresses {
			vpc.Status.Transit.Addresses = append(vpc.Status.Transit.Addresses, address.String())
		}
	}
	condition := conditionOf(in, applied)
	k8s.SetConditions(&vpc.Status.Conditions, vpc.Generation, condition)
	if err := k8s.PatchStatus(ctx, r.Client, base, vpc); err != nil {
		return err
	}
	passing := errors.Is(applied, northbound.ErrWaiting) && !errors.Is(applied, errNoAddress)
	if !passing {
		k8s.WarnAnew(r.Recorder, vpc, base.Status.Conditions, vpc.Status.Conditions, kubeovnv1.ConditionTransitReady)
	}
	if applied == nil && in.lost && in.pair.Active != "" && in.pair.Active != in.before.Active {
		failovers.WithLabelValues(vpc.Name).Inc()
		k8s.Warn(r.Recorder, vpc, ReasonMoved, fmt.Sprintf("%s stopped serving: Services and the outside are now reached through %s",
			in.before.Active, in.pair.Active))
	}
	return nil
}

// conditionOf returns the condition TransitReady.
func conditionOf(in inputs, applied error) metav1.Condition {
	c := metav1.Condition{Type: kubeovnv1.ConditionTransitReady, Status: metav1.ConditionFalse}
	switch {
	case errors.Is(applied, errNoAddress):
		c.Reason, c.Message = ReasonNoAddress, applied.Error()
	case applied != nil:
		ready := k8s.Ready(applied, northbound.ErrWaiting)
		c.Reason, c.Message = ready.Reason, ready.Message
	case in.conflict != "":
		c.Reason, c.Message = ReasonLinkAddress, in.conflict
	case in.pair.Active == "":
		c.Reason, c.Message = ReasonNoNode, "no node serves: neither Services nor the outside are reached"
	case !in.up:
		c.Reason = ReasonNoNode
		c.Message = fmt.Sprintf("no node serves: traffic to Services and the outside is still sent to %s", in.pair.Active)
	default:
		c.Status, c.Reason = metav1.ConditionTrue, ReasonCarried
		c.Message = fmt.Sprintf("%s carries the traffic to Services and the outside, from %s", in.pair.Active, ipfamily.Join(in.allocation.Addresses))
		for _, family := range in.external {
			c.Message += fmt.Sprintf("; %s leaves through an external port, except to Services", family)
		}
		if missing := in.missing(); missing != "" {
			c.Message += "; " + missing
		}
	}
	return c
}

// missing describes the CIDRs of subnets with natOutgoing whose family the join subnet does not have.
func (in *inputs) missing() string {
	has := map[ipfamily.Family]bool{}
	for _, address := range in.allocation.Addresses {
		has[ipfamily.Of(address)] = true
	}
	var lacking []string
	for _, cidr := range in.outgoing {
		if !has[ipfamily.Of(cidr.Addr())] {
			lacking = append(lacking, cidr.String())
		}
	}
	if len(lacking) == 0 {
		return ""
	}
	return fmt.Sprintf("%s cannot leave: subnet %s has no addresses of that family", strings.Join(lacking, ", "), kubeovnv1.JoinSubnet)
}
