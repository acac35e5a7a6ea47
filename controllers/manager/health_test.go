// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/desired"
)

func TestHealth(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	refusal := func(name string, since time.Duration) northbound.Refusal {
		return northbound.Refusal{
			Owner: desired.Owner{Kind: "Pod", Namespace: "shop", Name: name}, Err: errors.New("no such column"), Since: now.Add(-since),
		}
	}
	var many []northbound.Refusal
	for i := range 9 {
		many = append(many, refusal(fmt.Sprint("p", i), time.Minute+time.Duration(i)*time.Second))
	}
	for name, c := range map[string]struct {
		acknowledged time.Time
		refused      []northbound.Refusal
		status       corev1.ConditionStatus
		reason       string
		message      string
	}{
		"does not lead":                  {time.Time{}, many, corev1.ConditionUnknown, "NotLeading", "another"},
		"writes":                         {now.Add(-time.Minute), nil, corev1.ConditionTrue, "Written", "is written"},
		"a refusal of a moment":          {now, []northbound.Refusal{refusal("p", time.Second)}, corev1.ConditionTrue, "Written", "is written"},
		"a refusal":                      {now, []northbound.Refusal{refusal("p", time.Minute)}, corev1.ConditionFalse, "Refused", "Pod/shop/p (no such column)"},
		"many refusals, the oldest five": {now, many, corev1.ConditionFalse, "Refused", "p8 (no such column), Pod/shop/p7 (no such column)"},
		"and how many more":              {now, many, corev1.ConditionFalse, "Refused", "and 4 more; everything else is written"},
		"no commit":                      {now.Add(-2 * time.Minute), many, corev1.ConditionFalse, "NotAcknowledged", "nothing since 2026-11-22T11:58:00Z"},
	} {
		got := health(c.acknowledged, slices.Clone(c.refused), nil, now)
		if got.Status != c.status || got.Reason != c.reason || !strings.Contains(got.Message, c.message) {
			t.Errorf("%s: got %s %s: %q", name, got.Status, got.Reason, got.Message)
		}
		if later := health(c.acknowledged, slices.Clone(c.refused), nil, now.Add(time.Second)); later != got {
			t.Errorf("%s: a second later it is another: %q", name, later.Message)
		}
	}
}

func TestHealthOfDefaultSubnets(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	got := health(now, nil, []string{"subnet ovn-default stays", "subnet join stays"}, now)
	if got.Status != corev1.ConditionFalse || got.Reason != "SubnetNotGrown" || got.Message != "subnet ovn-default stays; subnet join stays" {
		t.Errorf("got %s %s: %q", got.Status, got.Reason, got.Message)
	}
}
