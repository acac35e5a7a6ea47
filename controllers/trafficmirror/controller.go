// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package trafficmirror makes OVN copy the packets of the pods that TrafficMirrors select.
package trafficmirror

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/reconciler"
	"github.com/kiln-net/kiln/internal/validation"
)

const (
	// MaxPerNode is the number of TrafficMirrors with ports on one node: Open vSwitch has 32 mirrors per bridge, and ignores further ones without a
	// report. One is the node's own, of mirror0.
	MaxPerNode = 31
	// MaxPorts bounds the ports of one TrafficMirror, and so the cost of a change of one of its pods.
	MaxPorts = 1000
)

// Reconciler applies TrafficMirrors. While the spec of one is invalid, its last valid spec stays applied.
type Reconciler struct {
	Client     client.Client
	Northbound *northbound.Engine
	Recorder   events.EventRecorder
	Gate       *reconciler.StartGate

	nodes nodes
	pods  reconciler.Paced // TrafficMirrors with a changed pod
	again k8s.RequestSource
}

// Reconcile applies one TrafficMirror.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var all kubeovnv1.TrafficMirrorList
	if err := r.Client.List(ctx, &all); err != nil {
		return ctrl.Result{}, fmt.Errorf("list TrafficMirrors: %w", err)
	}
	if err := r.prime(ctx, all.Items); err != nil {
		return ctrl.Result{}, err
	}
	i := slices.IndexFunc(all.Items, func(m kubeovnv1.TrafficMirror) bool { return m.Name == req.Name })
	if i < 0 || all.Items[i].DeletionTimestamp != nil {
		r.enqueue(r.nodes.set(req.Name, candidate{}, nil))
		ports.Delete(req.Name)
		return ctrl.Result{}, r.Northbound.Apply(ctx, translate.TrafficMirrorOwner(req.Name), nil)
	}
	mirror := &all.Items[i]
	done := outcome{problem: problemOf(mirror)}
	done.err = r.apply(ctx, mirror, all.Items, &done)
	return ctrl.Result{}, errors.Join(k8s.Unless(done.err, northbound.ErrWaiting), r.patchStatus(ctx, mirror, done))
}

// apply writes the rows of the applied spec.
func (r *Reconciler) apply(ctx context.Context, mirror *kubeovnv1.TrafficMirror, all []kubeovnv1.TrafficMirror, done *outcome) error {
	spec := appliedSpec(mirror)
	if spec == nil { // it never had a valid one
		return r.Northbound.Apply(ctx, translate.TrafficMirrorOwner(mirror.Name), nil)
	}
	done.conflict = conflictOf(mirror, spec, all)
	var err error
	if done.conflict == "" {
		if done.selection, err = r.selected(ctx, spec, all); err != nil {
			return err
		}
	}
	r.enqueue(r.nodes.set(mirror.Name, candidateOf(mirror, spec), nodesOf(done.ports)))
	admitted := done.ports[:0:0]
	full := map[string]bool{}
	for _, p := range done.ports {
		if r.nodes.admits(mirror.Name, p.node) {
			admitted = append(admitted, p)
		} else {
			full[p.node] = true
		}
	}
	done.ports, done.full = admitted, sortedKeys(full)
	var present []port
	for _, p := range admitted {
		if r.Northbound.Has(desired.TableSwitchPort, translate.PodPortRef(p.Port)) {
			present = append(present, p)
		}
	}
	owner := translate.TrafficMirrorOwner(mirror.Name)
	if err := r.Northbound.Apply(ctx, owner, rowsOf(mirror.Name, spec, present)); err != nil {
		return fmt.Errorf("apply the mirror: %w", err)
	}
	done.ports = present
	if len(present) == len(admitted) {
		return nil
	}
	// The other ports are not in the database yet, for example after its loss. This waits for them, and changes nothing until they are.
	if err := r.Northbound.Apply(ctx, owner, rowsOf(mirror.Name, spec, admitted)); k8s.Unless(err, northbound.ErrWaiting) != nil {
		return fmt.Errorf("wait for ports: %w", err)
	}
	return nil
}

func rowsOf(name string, spec *kubeovnv1.TrafficMirrorSpec, ports []port) []desired.Row {
	in := translate.TrafficMirrorInputs{Name: name, Spec: *spec}
	for _, p := range ports {
		in.Ports = append(in.Ports, p.Port)
	}
	return translate.TrafficMirror(in)
}

func problemOf(mirror *kubeovnv1.TrafficMirror) *validation.Problem {
	_, _, problem := validation.TrafficMirror(&mirror.Spec)
	return problem
}

// appliedSpec returns the spec, or its last valid state; nil if there was none.
func appliedSpec(mirror *kubeovnv1.TrafficMirror) *kubeovnv1.TrafficMirrorSpec {
	if problemOf(mirror) == nil {
		return &mirror.Spec
	}
	return mirror.Status.ValidatedSpec
}

// conflictOf returns the older TrafficMirror whose tunnel a node could not distinguish from the one of mirror: Open vSwitch refuses the second one.
func conflictOf(mirror *kubeovnv1.TrafficMirror, spec *kubeovnv1.TrafficMirrorSpec, all []kubeovnv1.TrafficMirror) string {
	same := func(other *kubeovnv1.TrafficMirrorSpec) bool {
		return other != nil && other.Type == spec.Type && other.Key == spec.Key && sameAddress(other.Sink, spec.Sink)
	}
	for i := range all {
		other := &all[i]
		if other.Name != mirror.Name && other.DeletionTimestamp == nil && lookup.Precedes(other, mirror) && same(appliedSpec(other)) {
			return other.Name
		}
	}
	return ""
}

func sameAddress(a, b string) bool {
	x, err := netip.ParseAddr(a)
	y, err2 := netip.ParseAddr(b)
	return err == nil && err2 == nil && x.Unmap() == y.Unmap()
}

func nodesOf(ports []port) map[string]bool {
	out := map[string]bool{}
	for _, p := range ports {
		out[p.node] = true
	}
	return out
}

func sortedKeys(set map[string]bool) []string {
	var keys []string
	for key := range set {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// some names at most a few of a list.
func some(names []string) string {
	const most = 5
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}
