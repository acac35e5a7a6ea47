// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"

	"github.com/kiln-net/kiln/internal/node/providerbridge"
)

func TestReturnsOfInterfacesAreEvents(t *testing.T) {
	const back = "Normal InterfaceReturned ProviderNetwork net1: interface eth2 has its addresses back from bridge br-net1"
	ready := providerbridge.Result{State: providerbridge.StateReady, Interface: "eth2", Moved: 2}
	failed := func(reason providerbridge.Reason) *providerbridge.Result {
		return &providerbridge.Result{State: providerbridge.StateFailed, Reason: reason, Message: "why", Interface: "eth2"}
	}
	removing := &providerbridge.Result{State: providerbridge.StateRemoving}
	for _, tt := range []struct {
		name    string
		results []*providerbridge.Result // after ready, nil for none
		want    []string
	}{
		{"nothing changes", []*providerbridge.Result{&ready}, nil},
		{"deleted", []*providerbridge.Result{removing, nil, nil}, []string{back}},
		{"refused", []*providerbridge.Result{removing, failed(providerbridge.ReasonUnsuitable)}, []string{back + ": why"}},
		{"back once", []*providerbridge.Result{failed(providerbridge.ReasonAwaitingTurn), failed(providerbridge.ReasonUnreachable)}, []string{back + ": why"}},
		{"rolled back", []*providerbridge.Result{failed(providerbridge.ReasonRolledBack), nil}, []string{"Warning InterfaceReturned ProviderNetwork net1: why"}},
		{"an error, and then deleted", []*providerbridge.Result{failed(providerbridge.ReasonError), nil}, []string{back}},
		{"an error for a moment", []*providerbridge.Result{failed(providerbridge.ReasonError), &ready}, nil},
		{"still in the bridge", []*providerbridge.Result{failed(providerbridge.ReasonConflict), failed(providerbridge.ReasonNoInterface)}, nil},
		{"another interface", []*providerbridge.Result{removing, {State: providerbridge.StateReady, Interface: "eth3"}}, []string{back}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			recorder := events.NewFakeRecorder(10)
			r := &Reconciler{Recorder: recorder, MTUChanged: func() {}}
			for _, result := range append([]*providerbridge.Result{&ready}, tt.results...) {
				results := map[string]providerbridge.Result{}
				if result != nil {
					results["net1"] = *result
				}
				r.remember(t.Context(), &corev1.Node{}, results)
			}
			close(recorder.Events)
			var got []string
			for e := range recorder.Events {
				if e != "Normal InterfaceMoved ProviderNetwork net1: bridge br-net1 has taken over 2 addresses of interface eth2" {
					got = append(got, e)
				}
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("events %q, want %q", got, tt.want)
			}
		})
	}
}
