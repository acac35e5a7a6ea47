// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package speaker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/agent/speaker/bgp"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/k8s"
)

// Bounds of writes of the condition. A session that flaps causes at most one write in reportPause.
const (
	reportPause   = time.Second
	reportTimeout = 30 * time.Second
)

// reporter writes the state of the sessions into the condition v1alpha1.PodConditionPeers of the process's own pod, when it changes.
type reporter struct {
	reconciler *Reconciler
	pods       clientv1.PodInterface
	pod        string
}

// Start implements manager.Runnable.
func (r *reporter) Start(ctx context.Context) error {
	var reported corev1.PodCondition
	pause := reportPause
	retry := time.NewTimer(0)
	defer retry.Stop()
	for {
		select {
		case <-r.reconciler.Server.Changed():
		case <-retry.C:
		case <-ctx.Done():
			return nil
		}
		if err := r.report(ctx, &reported); err != nil && ctx.Err() == nil {
			pause = min(2*pause, reportTimeout)
			r.reconciler.Log.Error(err, "cannot report the sessions; retrying", "in", pause.String())
			retry.Reset(pause)
			continue
		}
		pause = reportPause
		select { // changes within this time are reported together
		case <-time.After(reportPause):
		case <-ctx.Done():
			return nil
		}
	}
}

func (r *reporter) report(ctx context.Context, reported *corev1.PodCondition) error {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	state, err := r.reconciler.Server.State(ctx)
	if err != nil {
		return err
	}
	c := condition(state)
	if c == *reported {
		return nil
	}
	stamped := c
	stamped.LastTransitionTime = metav1.Now()
	if err := client.IgnoreNotFound(k8s.PatchPodCondition(ctx, r.pods, r.pod, stamped)); err != nil {
		return err
	}
	*reported = c
	return nil
}

// condition returns the condition without its time. The operator parses its message (package api/v1alpha1, ParsePeers).
func condition(state bgp.State) corev1.PodCondition {
	c := corev1.PodCondition{Type: v1alpha1.PodConditionPeers, Status: corev1.ConditionTrue, Reason: "Established"}
	down := func(p bgp.PeerState) bool { return !p.Established }
	if slices.ContainsFunc(state.Peers, down) {
		c.Status, c.Reason = corev1.ConditionFalse, "SessionDown"
	}
	if len(state.Peers) == 0 {
		c.Reason = "NoPeers"
	}
	var peers []string
	for _, p := range state.Peers {
		text := v1alpha1.SessionEstablished
		if down(p) {
			text = v1alpha1.SessionDown
		}
		peers = append(peers, fmt.Sprintf("%s %s", p.Address, text))
	}
	c.Message = strings.Join(peers, "; ")
	return c
}
