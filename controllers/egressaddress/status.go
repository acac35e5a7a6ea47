// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package egressaddress

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/reconciler"
)

// Reasons of the condition Ready, and of events.
const (
	// ReasonConflict: another object has an address.
	ReasonConflict = "AddressesInUse"
	// ReasonNoNode: no node serves.
	ReasonNoNode = "NoNodeServes"
	// ReasonNoAddress: the join subnet is full, or has not the family of an address.
	ReasonNoAddress = "AddressNotAllocated"
	// ReasonEip: the OvnEip has no addresses.
	ReasonEip = "OvnEipNotReady"
	// ReasonRules: rules of pods are not applied.
	ReasonRules = "RulesNotReady"
	// ReasonOverlap: older EgressAddresses have selected pods.
	ReasonOverlap = "PodsOfAnother"
	// ReasonMoved is the event of a failover from a node that is down.
	ReasonMoved = "EgressAddressMoved"
)

var (
	nodes = reconciler.NewSeries(prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kiln_egress_address_info", Help: "The node of an EgressAddress with addresses on nodes; 1 while it serves.",
	}, []string{"egress_address", "node", "standby", "addresses"}))
	pods = reconciler.NewSeries(prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kiln_egress_address_pods", Help: "Pods to which an EgressAddress applies.",
	}, []string{"egress_address"}))
	failovers = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kiln_egress_address_failovers_total", Help: "Failovers: how often the addresses of an EgressAddress moved away from a node that stopped serving.",
	}, []string{"egress_address"})
)

func init() { metrics.Registry.MustRegister(failovers) }

// measure exports an EgressAddress. Its counter begins with 0, so that Prometheus sees the first failover as an increase.
func (in *inputs) measure() {
	name := in.object.Name
	pods.Set([]string{name}, float64(in.object.Status.Pods))
	if !in.onNodes() {
		nodes.Delete(name)
		failovers.DeleteLabelValues(name)
		return
	}
	failovers.WithLabelValues(name)
	value := 0.0
	if in.pick.Up {
		value = 1
	}
	nodes.Set([]string{name, in.pick.Active, in.pick.Standby, ipfamily.Join(in.addresses)}, value)
}

// unmeasure deletes the series of an EgressAddress.
func unmeasure(name string) {
	nodes.Delete(name)
	pods.Delete(name)
	failovers.DeleteLabelValues(name)
}

func (in *inputs) onNodes() bool { return in.spec != nil && in.spec.OvnEip == "" }

// patchStatus writes the result. If the rows could not be committed, the status keeps the node and the addresses of the committed rows.
func (r *Reconciler) patchStatus(ctx context.Context, in *inputs, applied error) error {
	object, base := in.object, in.object.DeepCopy()
	status := &object.Status
	if in.problem == nil { // in the same patch as the condition Validated
		status.ValidatedSpec = object.Spec.DeepCopy()
	}
	held, others := r.Sets.Egress(in.set)
	status.Pods = int32(held) //nolint:gosec // pods of a cluster
	if applied == nil {
		if in.pick.Active != "" && (in.pick.Active != status.Node || status.NodeSince == nil) {
			status.NodeSince = later(status.NodeSince)
		}
		status.Node, status.Standby, status.Addresses = in.pick.Active, in.pick.Standby, nil
		if !in.onNodes() || in.pick.Active != "" {
			for _, address := range in.addresses {
				status.Addresses = append(status.Addresses, address.String())
			}
		}
		in.measure()
	}
	k8s.SetConditions(&status.Conditions, object.Generation, k8s.Validated(in.problem), in.ready(applied, others))
	if err := r.announce(ctx, in); err != nil {
		return err
	}
	if err := k8s.PatchStatus(ctx, r.Client, base, object); err != nil {
		return err
	}
	k8s.WarnAnew(r.Recorder, object, base.Status.Conditions, status.Conditions, kubeovnv1.ConditionReady)
	if applied == nil && in.pick.Lost && in.pick.Active != "" && in.pick.Active != in.before.Active {
		failovers.WithLabelValues(object.Name).Inc()
		k8s.Warn(r.Recorder, object, ReasonMoved, fmt.Sprintf("%s stopped serving: packets now leave through %s", in.before.Active, in.pick.Active))
	}
	return nil
}

// ready returns the condition Ready. others are the older EgressAddresses with selected pods.
func (in *inputs) ready(applied error, others map[string]int) metav1.Condition {
	ready := k8s.Ready(applied, northbound.ErrWaiting)
	const dropped = ": packets that the pods send to outside are dropped"
	switch {
	case in.problem != nil:
		ready = k8s.NotValid(in.problem)
		if in.spec != nil {
			ready.Message += "; the last valid spec stays applied"
		}
	case applied != nil:
	case in.conflict != "":
		ready = k8s.NotReady(ReasonConflict, in.conflict+dropped+": write other addresses")
	case in.held != "":
		ready = k8s.NotReady(ReasonConflict, in.held+dropped)
	case in.full != "":
		ready = k8s.NotReady(ReasonNoAddress, in.full+dropped)
	case in.onNodes() && in.pick.Active == "":
		ready = k8s.NotReady(ReasonNoNode, "no node of nodeSelector serves"+dropped)
	case in.onNodes() && !in.pick.Up:
		ready = k8s.NotReady(ReasonNoNode, fmt.Sprintf("no node of nodeSelector serves: packets are still sent to %s", in.pick.Active))
	case in.onNodes() && len(in.missing()) > 0:
		ready = k8s.NotReady(ReasonNoAddress, fmt.Sprintf("subnet %s has no addresses of the family of %s: packets of this family are dropped", kubeovnv1.JoinSubnet, in.missing()[0]))
	case in.eip != "":
		ready = k8s.NotReady(ReasonEip, in.eip)
	case in.rules != "":
		ready = k8s.NotReady(ReasonRules, in.rules)
	case len(others) > 0:
		var texts []string
		for _, name := range slices.Sorted(maps.Keys(others)) {
			texts = append(texts, fmt.Sprintf("%d of EgressAddress %s", others[name], name))
		}
		ready = k8s.NotReady(ReasonOverlap, "it does not apply to selected pods that are also selected by older ones: "+k8s.Some(texts, 5))
	case in.onNodes():
		ready.Message = fmt.Sprintf("packets leave through %s, from %s", in.pick.Active, ipfamily.Join(in.addresses))
	default:
		ready.Message = "packets leave from " + ipfamily.Join(in.addresses)
	}
	return ready
}
