// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

func TestConditionsFollowFromThePass(t *testing.T) {
	whole := component{row: v1alpha1.ComponentStatus{Name: "a"}, serves: true, serving: true, complete: true}
	partly := component{row: v1alpha1.ComponentStatus{Name: "b", Message: "1 of 2 ready"}, serves: true}
	down := component{row: v1alpha1.ComponentStatus{Name: "c", Message: "0 of 1 ready"}}
	pending := component{row: v1alpha1.ComponentStatus{Name: "d", Message: "backup x waits for claim y"}, serves: true, serving: true}
	troubled := partly
	troubled.troubles = []string{"one", "two", "three", "four", "five"}
	waiting := &Halt{Reason: "WaitingForDatabase", Message: "no leader"}
	wrong := &Halt{Reason: "InvalidNetwork", Message: "change it", Degraded: true}
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

func TestTheMostImportantConditionGivesTheMessage(t *testing.T) {
	condition := func(kind string, status metav1.ConditionStatus) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Message: kind + " is " + string(status)}
	}
	const yes, no = metav1.ConditionTrue, metav1.ConditionFalse
	tests := []struct {
		name                                        string
		available, progressing, degraded, protected metav1.ConditionStatus
		want                                        string
	}{
		{"all is well", yes, no, no, yes, "Available is True"},
		{"an upgrade", yes, yes, no, yes, "Progressing is True"},
		{"the installation", no, yes, no, yes, "Available is False"},
		{"a member is lost", yes, no, yes, yes, "Degraded is True"},
		{"an upgrade has stopped", no, yes, yes, no, "Degraded is True"},
		{"a policy is missing", yes, yes, no, no, "Protected is False"},
		{"no database answers", "Unknown", "Unknown", "Unknown", "Unknown", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := message([]metav1.Condition{
				condition("Available", tt.available), condition("Progressing", tt.progressing), condition("Degraded", tt.degraded), condition("Protected", tt.protected),
			})
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
	if got := message(nil); got != "" {
		t.Errorf("a cluster without conditions: %q", got)
	}
}
