// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package status reports a pass of the operator. Phases describe in a Report what they find, and end the pass with a Halt. At its end Writer computes
// the conditions and the rows of components from both, and writes the status of the OVNCluster.
package status

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"

	"github.com/kiln-net/kiln/controllers/operator/certs"
	"github.com/kiln-net/kiln/controllers/operator/observed"
	"github.com/kiln-net/kiln/controllers/operator/render"
)

// Report collects what the phases of a pass find, for the status.
type Report struct {
	// Cluster has the nodes and pods that the pass sees.
	*observed.Cluster
	// OldKubernetes is the problem with the version of the API server, if it is too old.
	OldKubernetes string
	// NodeTroubles are problems with the addresses of nodes that need a person.
	NodeTroubles []NodeTrouble
	// Protection is the state of the admission policies.
	Protection Protection
	// Issuer is the progress of the issuer of the CAs, if there is one.
	Issuer certs.Progress

	// advice are recommendations that the condition Available reports while the cluster has no problem.
	advice []string
	// waiting are the reasons why members of databases have not started their servers, by pod.
	waiting map[string]string
	// notes are further reasons to wait, by component.
	notes map[string][]Note
	// wake is the time of the next pass if no watch triggers one before; zero for never.
	wake time.Time
}

// Note is a reason why a component waits.
type Note struct {
	Text string
	// Stuck is set if a person has to act, Aside if the component serves fully meanwhile.
	Stuck, Aside bool
}

// NodeTrouble is a problem with the addresses of nodes.
type NodeTrouble struct {
	Nodes []string
	// Reason of the event of each node.
	Reason, Text string
}

// Protection reports whether the admission policies are applied. Without a reason this is not known yet.
type Protection struct {
	Applied         bool
	Reason, Message string
}

// NewReport returns an empty report of a pass that sees this cluster.
func NewReport(cluster *observed.Cluster) *Report {
	return &Report{Cluster: cluster, waiting: map[string]string{}, notes: map[string][]Note{}}
}

// Note adds a reason why a component waits.
func (r *Report) Note(component string, n Note) { r.notes[component] = append(r.notes[component], n) }

// Noted reports whether a component has a reason to wait.
func (r *Report) Noted(component string) bool { return len(r.notes[component]) > 0 }

// NoteStart records why the member in a pod has not started its server.
func (r *Report) NoteStart(pod *corev1.Pod, why string) { r.waiting[pod.Name] = why }

// Advise adds a recommendation to the condition Available.
func (r *Report) Advise(text string) { r.advice = append(r.advice, text) }

// Advice returns all recommendations.
func (r *Report) Advice() string { return strings.Join(r.advice, "; ") }

// WakeAt requests another pass at this time.
func (r *Report) WakeAt(t time.Time) {
	if r.wake.IsZero() || t.Before(r.wake) {
		r.wake = t
	}
}

// WakeAfter requests another pass after this time.
func (r *Report) WakeAfter(d time.Duration) { r.WakeAt(r.Now.Add(d)) }

// Wake returns the time of the next pass if no watch triggers one before; zero for never.
func (r *Report) Wake() time.Time { return r.wake }

// TroubleOf returns why a pod will not become ready by itself, or an empty string.
func (r *Report) TroubleOf(pod *corev1.Pod) string {
	return observed.Trouble(pod, r.waiting[pod.Name], r.Now)
}

// Trouble returns the problem of a pod of an operand. A node that does not answer is not a problem of Kiln, unless it holds a
// database's data.
func (r *Report) Trouble(operand string, pod *corev1.Pod) string {
	if n := r.Node(observed.MadeFor(pod)); observed.Silent(n) {
		if render.OperandOf(operand).Database {
			return fmt.Sprintf("node %s, which holds the database, does not answer: start it", n.Name)
		}
		return ""
	}
	why := r.TroubleOf(pod)
	if until := observed.UnreadyUntil(pod); why == "" && !observed.Ready(pod) && pod.DeletionTimestamp.IsZero() && r.Now.Before(until) {
		r.WakeAt(until)
	}
	return why
}

// Log logs, at verbosity 1, where the pass ended, why components wait, and when the next pass is due without an event.
func (r *Report) Log(log logr.Logger, ended error) {
	log = log.V(1)
	if !log.Enabled() {
		return
	}
	for _, component := range slices.Sorted(maps.Keys(r.notes)) {
		for _, n := range r.notes[component] {
			log.Info("a component waits", "component", component, "reason", n.Text, "stuck", n.Stuck)
		}
	}
	next := "at the next event"
	if !r.wake.IsZero() {
		next = r.wake.UTC().Format(time.RFC3339)
	}
	if ended != nil {
		log.Info("the pass ended early", "reason", ended.Error(), "next", next)
		return
	}
	log.Info("the pass ran all phases", "next", next)
}

// Halt ends a pass before its last phase. It is not an error: the status reports the reason.
type Halt struct {
	Reason, Message string
	// Degraded is set if a person has to act. Otherwise the operator only waits.
	Degraded bool
	// Retry is an error that no watch will report as resolved. The pass is requeued for it.
	Retry error
}

func (h *Halt) Error() string { return h.Message }

// Unwrap makes Retry visible to errors.Is.
func (h *Halt) Unwrap() error { return h.Retry }

// Retryable returns the errors of a pass that need a requeue. It drops a halt without retry, because a watch ends it. In
// joined errors, one per database, it treats each error separately.
func Retryable(err error) error {
	switch e := err.(type) { //nolint:errorlint // it takes the error apart
	case *Halt:
		return e.Retry
	case interface{ Unwrap() []error }:
		var all []error
		for _, one := range e.Unwrap() {
			all = append(all, Retryable(one))
		}
		return errors.Join(all...)
	}
	if h := (*Halt)(nil); errors.As(err, &h) {
		return Retryable(errors.Unwrap(err))
	}
	return err
}

// divide returns the halts of a pass as one halt with all messages, and its other errors. A pass has several results if it runs the
// southbound database although the northbound one halted.
func divide(err error) (h *Halt, rest error) {
	switch e := err.(type) { //nolint:errorlint // it takes the error apart
	case *Halt:
		return e, nil
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			next, err := divide(one)
			rest = errors.Join(rest, err)
			switch {
			case next == nil:
			case h == nil:
				h = next
			default:
				both := &Halt{Reason: h.Reason, Message: h.Message + "; " + next.Message, Degraded: h.Degraded || next.Degraded}
				if next.Degraded && !h.Degraded { // it needs a person
					both.Reason = next.Reason
				}
				h = both
			}
		}
		return h, rest
	}
	if errors.As(err, &h) { // the error of a phase
		return divide(errors.Unwrap(err))
	}
	return nil, err
}
