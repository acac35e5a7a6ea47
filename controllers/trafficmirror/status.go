// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package trafficmirror

import (
	"context"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prometheus/client_golang/prometheus"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/reconciler"
	"github.com/kiln-net/kiln/internal/validation"
)

// Reasons of the condition Ready.
const (
	reasonConflict  = "MirrorConflict" // an older TrafficMirror has the same type, sink and key
	reasonNodesFull = "NodesFull"      // nodes with too many TrafficMirrors
	reasonTooMany   = "TooManyPorts"
)

var ports = reconciler.NewSeries(prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "kiln_traffic_mirror_ports",
	Help: "Ports of pods whose packets a TrafficMirror copies.",
}, []string{"traffic_mirror"}))

// outcome is the result of applying a TrafficMirror.
type outcome struct {
	selection

	problem  *validation.Problem
	conflict string
	full     []string // nodes that admit no further mirror
	err      error
}

// ready returns the condition Ready.
func (o *outcome) ready(mirror *kubeovnv1.TrafficMirror) metav1.Condition {
	ready := k8s.Ready(o.err, northbound.ErrWaiting)
	switch {
	case o.problem != nil:
		ready = k8s.NotValid(o.problem)
		if mirror.Status.ValidatedSpec != nil {
			ready.Message += "; the last valid spec stays applied"
		}
	case o.conflict != "":
		ready = k8s.NotReady(reasonConflict, fmt.Sprintf("the older TrafficMirror %s has the same type, sink and key, and nodes could not distinguish the two: use another key", o.conflict))
	case o.err != nil:
	case len(o.full) > 0:
		ready = k8s.NotReady(reasonNodesFull, fmt.Sprintf("packets of pods on %s are not copied: %d TrafficMirrors that take precedence have pods there, the most of a node. Select fewer pods, or delete a TrafficMirror",
			some(o.full), MaxPerNode))
	case o.matching > MaxPorts:
		ready = k8s.NotReady(reasonTooMany, fmt.Sprintf("%d pods match, and the packets of %d are copied, in equal shares of the namespaces: select fewer, or distribute them over several TrafficMirrors with other keys",
			o.matching, MaxPorts))
	}
	var notes []string
	if ready.Status == metav1.ConditionTrue && o.matching == 0 {
		notes = append(notes, "no pod matches")
	}
	if len(o.sinks) > 0 {
		notes = append(notes, "not copied, because a sink of a TrafficMirror is their address: "+some(o.sinks))
	}
	if len(notes) > 0 {
		ready.Message += "; " + strings.Join(notes, "; ")
	}
	return ready
}

// patchStatus writes the result to the status of a TrafficMirror.
func (r *Reconciler) patchStatus(ctx context.Context, mirror *kubeovnv1.TrafficMirror, done outcome) error {
	base := mirror.DeepCopy()
	status := &mirror.Status
	if done.problem == nil { // in the same patch as the condition Validated
		status.ValidatedSpec = mirror.Spec.DeepCopy()
	}
	if done.err == nil {
		status.Ports, status.Nodes = int32(len(done.ports)), int32(len(nodesOf(done.ports))) //nolint:gosec // at most MaxPorts
		ports.Set([]string{mirror.Name}, float64(len(done.ports)))
	}
	k8s.SetConditions(&status.Conditions, mirror.Generation, k8s.Validated(done.problem), done.ready(mirror))
	k8s.WarnAnew(r.Recorder, mirror, base.Status.Conditions, status.Conditions, kubeovnv1.ConditionReady)
	return k8s.PatchStatus(ctx, r.Client, base, mirror)
}
