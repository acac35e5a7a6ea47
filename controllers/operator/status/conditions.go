// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/certs"
	"github.com/kiln-net/kiln/controllers/operator/rollout"
)

// Reasons of conditions. Halts have further reasons.
const (
	reasonAllServe  = "ComponentsServe"
	reasonAsWanted  = "AsSpecified"
	reasonWaiting   = "WaitingForComponents"
	reasonTrouble   = "ComponentTrouble"
	reasonFailed    = "ReconcileFailed"
	reasonUpgrading = "ReplacingPods"
	reasonStopped   = "ReplacingStopped"
	reasonPaused    = "ReplacingPaused"
	reasonNoTrouble = "NoTrouble"
	reasonUnissued  = "AuthoritiesNotIssued"
	reasonOrdered   = "WaitingForIssuer"
	reasonJoining   = "ReplacingAuthorities"
	reasonNodes     = "NodeAddresses"
)

// ReasonOldKubernetes is the reason of Degraded, and of the event of the operator's pod.
const ReasonOldKubernetes = "KubernetesTooOld"

// summary is the input of the conditions.
type summary struct {
	generation int64
	components []component
	upgrade    rollout.Plan
	issuer     certs.Progress
	protection Protection
	nodes      []NodeTrouble
	// oldKubernetes is not empty if the API server is too old.
	oldKubernetes string
	advice        string
	// halt and err are the results of the pass. Both are set if the databases have different results.
	halt *Halt
	err  error
	// wasAvailable is the condition Available before this pass.
	wasAvailable bool
}

// complete is true when every pod on a node that answers is ready and has the current template.
func (s summary) complete() bool {
	return s.halt == nil && s.err == nil && !slices.ContainsFunc(s.components, func(c component) bool { return !c.complete && !c.aside })
}

func (s summary) conditions() []metav1.Condition {
	all := []metav1.Condition{s.available(), s.progressing(), s.degraded()}
	if s.protection.Reason != "" {
		all = append(all, newCondition(v1alpha1.ConditionProtected, s.protection.Applied, s.protection.Reason, s.protection.Message))
	}
	for i := range all {
		all[i].ObservedGeneration = s.generation
	}
	return all
}

// available becomes true when every component serves on all nodes that answer. Then it stays true while each component has
// a ready pod: the other conditions report nodes that join, are updated or fail.
func (s summary) available() metav1.Condition {
	var missing []string
	for _, c := range s.components {
		if !c.aside && (!c.serves || !s.wasAvailable && !c.serving) {
			missing = append(missing, c.row.Name)
		}
	}
	if len(missing) > 0 {
		return newCondition(v1alpha1.ConditionAvailable, false, reasonWaiting, "not serving yet: "+strings.Join(missing, ", "))
	}
	return newCondition(v1alpha1.ConditionAvailable, true, reasonAllServe, strings.TrimSuffix("every component serves; "+s.advice, "; "))
}

func (s summary) progressing() metav1.Condition {
	if s.err != nil {
		return newCondition(v1alpha1.ConditionProgressing, true, reasonFailed, "trying again: "+s.err.Error())
	}
	if s.halt != nil {
		return newCondition(v1alpha1.ConditionProgressing, !s.halt.Degraded, s.halt.Reason, s.halt.Message)
	}
	if u := s.upgrade; u.Stage != "" {
		reason := reasonUpgrading
		switch {
		case u.Stuck:
			reason = reasonStopped
		case u.Held:
			reason = reasonPaused
		}
		return newCondition(v1alpha1.ConditionProgressing, !u.Stuck && !u.Held, reason, u.Message)
	}
	var waiting []string
	for _, c := range s.components {
		if !c.complete {
			waiting = append(waiting, fmt.Sprintf("%s: %s", c.row.Name, c.row.Message))
		}
	}
	if len(waiting) > 0 {
		return newCondition(v1alpha1.ConditionProgressing, true, reasonWaiting, strings.Join(waiting, "; "))
	}
	return progressing(&s.issuer)
}

func (s summary) degraded() metav1.Condition {
	var troubles []string
	reason := reasonTrouble
	if s.err != nil {
		reason = reasonFailed
	}
	if s.halt != nil && s.halt.Degraded {
		reason = s.halt.Reason
		troubles = append(troubles, s.halt.Message)
	}
	if s.err != nil {
		troubles = append(troubles, s.err.Error())
	}
	if s.upgrade.Stuck {
		reason = reasonStopped
		troubles = append(troubles, s.upgrade.Message)
	}
	for _, c := range s.components {
		for _, why := range rollout.Few(c.troubles) {
			troubles = append(troubles, c.row.Name+": "+why)
		}
	}
	if len(s.nodes) > 0 && len(troubles) == 0 {
		reason = reasonNodes
	}
	nodes := make([]string, 0, len(s.nodes))
	for _, n := range s.nodes {
		nodes = append(nodes, n.Text)
	}
	troubles = append(troubles, rollout.Few(nodes)...)
	if len(s.issuer.Troubles) > 0 {
		if len(troubles) == 0 {
			reason = reasonUnissued
		}
		troubles = append(troubles, issuerTrouble(&s.issuer))
	}
	if s.oldKubernetes != "" { // the likely cause of the others
		reason = ReasonOldKubernetes
		troubles = append([]string{s.oldKubernetes}, troubles...)
	}
	if len(troubles) > 0 {
		return newCondition(v1alpha1.ConditionDegraded, true, reason, strings.Join(troubles, "; "))
	}
	return newCondition(v1alpha1.ConditionDegraded, false, reasonNoTrouble, "nothing needs attention")
}

func newCondition(kind string, holds bool, reason, message string) metav1.Condition {
	status := metav1.ConditionFalse
	if holds {
		status = metav1.ConditionTrue
	}
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message}
}

// progressing returns the condition Progressing of an OVNCluster that waits for nothing else.
func progressing(i *certs.Progress) metav1.Condition {
	switch {
	case len(i.Troubles) > 0:
		return newCondition(v1alpha1.ConditionProgressing, false, reasonUnissued, issuerTrouble(i))
	case len(i.Waiting) > 0:
		return newCondition(v1alpha1.ConditionProgressing, true, reasonOrdered, "waiting for "+strings.Join(rollout.Few(i.Waiting), "; "))
	case !i.Joining.IsZero():
		return newCondition(v1alpha1.ConditionProgressing, true, reasonJoining,
			"new CAs are trusted next to the current ones, and sign from "+i.Joining.UTC().Format(time.RFC3339))
	}
	return newCondition(v1alpha1.ConditionProgressing, false, reasonAsWanted, "everything is as specified")
}

// issuerTrouble returns the message of the conditions: the problems, and that the existing CAs stay in use.
func issuerTrouble(i *certs.Progress) string {
	return strings.Join(rollout.Few(i.Troubles), "; ") + "; until then the authorities that are there stay"
}

// message returns the message of the first of these conditions that has the given status. Degraded comes first because an administrator has to act;
// Available=True comes last and is the message of a cluster without problems.
func message(conditions []metav1.Condition) string {
	for _, important := range []struct {
		kind   string
		status metav1.ConditionStatus
	}{
		{v1alpha1.ConditionDegraded, metav1.ConditionTrue},
		{v1alpha1.ConditionAvailable, metav1.ConditionFalse},
		{v1alpha1.ConditionProtected, metav1.ConditionFalse},
		{v1alpha1.ConditionProgressing, metav1.ConditionTrue},
		{v1alpha1.ConditionAvailable, metav1.ConditionTrue},
	} {
		if c := meta.FindStatusCondition(conditions, important.kind); c != nil && c.Status == important.status {
			return c.Message
		}
	}
	return ""
}
