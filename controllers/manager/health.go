// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound"
)

const (
	// healthPeriod is the interval of checks of the engine. The condition is written only when it changes.
	healthPeriod = 2 * time.Second
	// healthTimeout bounds a write, and the delay after a failed one.
	healthTimeout = 30 * time.Second
	// silence is how long a leader may be without a commit. A healthy engine commits at least every CanaryInterval, and a transaction
	// without a response times out after 30 s.
	silence = northbound.CanaryInterval + 45*time.Second
	// namedOwners is the number of owners that the condition names.
	namedOwners = 5
	// refusalPatience is how long a refusal must last before the condition reports it. Shorter refusals need no action.
	refusalPatience = 10 * time.Second
)

// reportHealth updates the condition v1alpha1.PodConditionNorthbound of the process's own pod until ctx ends. The operator reads the
// condition.
func (p *process) reportHealth(ctx context.Context, engine *northbound.Engine) error {
	pods := p.clients.CoreV1().Pods(p.options.Own.Namespace)
	ticker := time.NewTicker(healthPeriod)
	defer ticker.Stop()
	var reported corev1.PodCondition
	period := healthPeriod
	for {
		found := health(engine.Acknowledged(), engine.Refused(), p.subnets.NotGrown(), time.Now())
		if found != reported {
			stamped := found
			stamped.LastTransitionTime = metav1.Now()
			limited, cancel := context.WithTimeout(ctx, healthTimeout)
			err := client.IgnoreNotFound(k8s.PatchPodCondition(limited, pods, p.options.Own.Pod, stamped))
			if cancel(); err == nil {
				reported, period = found, healthPeriod
			} else {
				period = min(2*period, healthTimeout)
				p.log.Error(err, "cannot report the health of northbound writes; retrying", "in", period.String())
			}
			ticker.Reset(period)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// health returns the condition without its time. Its text does not change while the problem stays the same. notGrown are the messages of
// subnet.Reconciler.NotGrown.
func health(acknowledged time.Time, refused []northbound.Refusal, notGrown []string, now time.Time) corev1.PodCondition {
	c := corev1.PodCondition{Type: v1alpha1.PodConditionNorthbound, Status: corev1.ConditionTrue, Reason: "Written", Message: "the wanted state is written"}
	if acknowledged.IsZero() {
		c.Status, c.Reason, c.Message = corev1.ConditionUnknown, "NotLeading", "another kube-ovn-controller leads, or none yet"
		return c
	}
	refused = slices.DeleteFunc(refused, func(r northbound.Refusal) bool { return now.Sub(r.Since) < refusalPatience })
	switch {
	case now.Sub(acknowledged) > silence:
		c.Status, c.Reason = corev1.ConditionFalse, "NotAcknowledged"
		c.Message = fmt.Sprintf("the northbound database has committed nothing since %s: new pods get no network; look at the pods of ovn-central",
			acknowledged.UTC().Format(time.RFC3339))
	case len(refused) > 0:
		slices.SortFunc(refused, func(a, b northbound.Refusal) int {
			return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.Owner.String(), b.Owner.String()))
		})
		var names []string
		for _, r := range refused[:min(len(refused), namedOwners)] {
			why := r.Err
			if errors.Is(why, northbound.ErrNoAnswer) { // the rest of the text describes the connection
				why = northbound.ErrNoAnswer
			}
			names = append(names, fmt.Sprintf("%s (%s)", r.Owner, why))
		}
		if more := len(refused) - namedOwners; more > 0 {
			names = append(names, fmt.Sprintf("and %d more", more))
		}
		c.Status, c.Reason = corev1.ConditionFalse, "Refused"
		c.Message = "the northbound database refuses the rows of " + strings.Join(names, ", ") + "; everything else is written"
	case len(notGrown) > 0:
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, "SubnetNotGrown", strings.Join(notGrown, "; ")
	}
	return c
}
