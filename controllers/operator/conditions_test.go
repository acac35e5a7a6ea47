// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

func TestConditionsFollowFromThePass(t *testing.T) {
	whole := component{row: v1alpha1.ComponentStatus{Name: "a"}, serves: true, serving: true, complete: true}
	partly := component{row: v1alpha1.ComponentStatus{Name: "b", Message: "1 of 2 ready"}, serves: true}
	down := component{row: v1alpha1.ComponentStatus{Name: "c", Message: "0 of 1 ready"}}
	pending := component{row: v1alpha1.ComponentStatus{Name: "d", Message: "backup x waits for claim y"}, serves: true, serving: true}
	troubled := partly
	troubled.troubles = []string{"one", "two", "three", "four", "five"}
	waiting := &halt{reason: "WaitingForDatabase", message: "no leader"}
	wrong := &halt{reason: "InvalidNetwork", message: "change it", degraded: true}
	for _, c := range []struct {
		name    string
		summary summary
		// Available, Progressing and Degraded.
		want [3]string
	}{
		{"all is well", summary{components: []component{whole}}, [3]string{
			"True ComponentsServe", "False AsSpecified", "False NoTrouble",
		}},
		{"not all nodes are there yet", summary{components: []component{whole, partly}}, [3]string{
			"False WaitingForComponents", "True WaitingForComponents", "False NoTrouble",
		}},
		{"a requested backup is pending", summary{components: []component{whole, pending}}, [3]string{
			"True ComponentsServe", "True WaitingForComponents", "False NoTrouble",
		}},
		{"a node joins an available network", summary{components: []component{whole, partly}, wasAvailable: true}, [3]string{
			"True ComponentsServe", "True WaitingForComponents", "False NoTrouble",
		}},
		{"a component is lost", summary{components: []component{whole, down}, wasAvailable: true}, [3]string{
			"False WaitingForComponents", "True WaitingForComponents", "False NoTrouble",
		}},
		{"a pod fails", summary{components: []component{troubled}, wasAvailable: true}, [3]string{
			"True ComponentsServe", "True WaitingForComponents", "True ComponentTrouble",
		}},
		{"the pass waits", summary{components: []component{down}, halt: waiting}, [3]string{
			"False WaitingForComponents", "True WaitingForDatabase", "False NoTrouble",
		}},
		{"the specification is wrong while all runs", summary{components: []component{whole}, halt: wrong, wasAvailable: true}, [3]string{
			"True ComponentsServe", "False InvalidNetwork", "True InvalidNetwork",
		}},
		{"one database has lost its quorum, the other one cannot be reached", summary{
			components: []component{down}, halt: wrong, err: errors.New("refused"), wasAvailable: true,
		}, [3]string{"False WaitingForComponents", "True ReconcileFailed", "True InvalidNetwork"}},
		{"the API server failed", summary{components: []component{whole}, err: errors.New("refused"), wasAvailable: true}, [3]string{
			"True ComponentsServe", "True ReconcileFailed", "True ReconcileFailed",
		}},
		{"the API server is too old", summary{components: []component{whole}, oldKubernetes: "too old", wasAvailable: true}, [3]string{
			"True ComponentsServe", "False AsSpecified", "True KubernetesTooOld",
		}},
		{"the API server is too old and failed", summary{
			components: []component{whole}, err: errors.New("refused"), oldKubernetes: "too old", wasAvailable: true,
		}, [3]string{"True ComponentsServe", "True ReconcileFailed", "True KubernetesTooOld"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got [3]string
			for i, condition := range c.summary.conditions() {
				got[i] = string(condition.Status) + " " + condition.Reason
				if condition.Message == "" {
					t.Errorf("%s has no message", condition.Type)
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	degraded := summary{components: []component{troubled}}.degraded()
	if want := "b: one; b: two; b: three; b: and 2 more"; degraded.Message != want {
		t.Errorf("the message is %q; want %q", degraded.Message, want)
	}
}
