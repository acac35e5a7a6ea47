// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"slices"
	"testing"
	"time"
)

// clinic tracks Leases with a clock that the test advances.
type clinic struct {
	*testing.T
	LeaseStates
	clock time.Time
	// renewals holds, per node, whether its agent renews.
	renewals map[string]bool
}

func newClinic(t *testing.T, nodes ...string) *clinic {
	c := &clinic{T: t, clock: time.Unix(1000, 0), renewals: map[string]bool{}}
	c.Now = func() time.Time { return c.clock }
	for _, node := range nodes {
		c.renewals[node] = true
	}
	return c
}

// pass advances the clock and returns the pulses that stopped in that time.
func (c *clinic) pass(d time.Duration) (stopped []string) {
	for end := c.clock.Add(d); c.clock.Before(end); c.clock = c.clock.Add(time.Second) {
		if c.clock.Unix()%int64(RenewEvery/time.Second) == 0 {
			for node, renews := range c.renewals {
				if renews {
					c.Renewed(node, c.clock.Add(-time.Hour), Tolerance) // the node's clock is wrong, which must not matter
				}
			}
		}
		now, _ := c.Expire()
		stopped = append(stopped, now...)
	}
	slices.Sort(stopped)
	return stopped
}

func (c *clinic) want(node string, want LeaseState) {
	c.Helper()
	if got := c.Of(node); got != want {
		c.Errorf("pulse of %s is %v, want %v", node, got, want)
	}
}

func TestPulseStopsWhenOneNodeDies(t *testing.T) {
	c := newClinic(t, "a", "b")
	c.want("a", NoLease)
	c.pass(time.Second)
	c.want("a", Unknown)
	c.pass(4 * time.Second)
	c.want("a", Alive)
	c.renewals["a"] = false
	if stopped := c.pass(5 * time.Second); len(stopped) > 0 {
		t.Errorf("after 5 s, within the tolerance, %v stopped", stopped)
	}
	if stopped := c.pass(5 * time.Second); !slices.Equal(stopped, []string{"a"}) {
		t.Errorf("%v stopped, want a", stopped)
	}
	c.want("a", Stopped)
	c.want("b", Alive)

	c.renewals["a"] = true
	c.pass(4 * time.Second)
	c.want("a", Unknown)
	c.pass(steady)
	c.want("a", Alive)
}

func TestNoMemberStopsWhileNoneAnswers(t *testing.T) {
	for _, outage := range []time.Duration{Tolerance, time.Minute} {
		for phase := range 2 { // phase of the last renewals
			c := newClinic(t, "a", "b", "c")
			c.pass(10*time.Second + time.Duration(phase)*time.Second)
			for node := range c.renewals {
				c.renewals[node] = false
			}
			if stopped := c.pass(outage); len(stopped) > 0 {
				t.Errorf("%v stopped in an outage of %s", stopped, outage)
			}
			c.renewals["b"] = true // the first node that renews again
			if stopped := c.pass(5 * time.Second); len(stopped) > 0 {
				t.Errorf("%v stopped right after an outage of %s", stopped, outage)
			}
			c.renewals["a"] = true
			if stopped := c.pass(10 * time.Second); !slices.Equal(stopped, []string{"c"}) {
				t.Errorf("after the outage %v stopped, want c, which did not come back", stopped)
			}
		}
	}
}

func TestRenewalsNeverCoincideInAnOutage(t *testing.T) {
	c := newClinic(t)
	c.Renewed("a", time.Unix(1, 0), Tolerance)
	c.clock = c.clock.Add(RenewEvery)
	c.Renewed("b", time.Unix(2, 0), Tolerance) // the last renewal of any node
	if stopped := c.pass(time.Minute); len(stopped) > 0 {
		t.Errorf("%v stopped, and only one renewal was missed before the outage", stopped)
	}
}

func TestAnAgentMayAskForMoreTime(t *testing.T) {
	c := newClinic(t, "b")
	c.pass(time.Second)
	c.Renewed("a", time.Unix(1, 0), Tolerance)
	c.Renewed("a", time.Unix(3, 0), RestartTolerance)
	if stopped := c.pass(RestartTolerance - time.Second); len(stopped) > 0 {
		t.Errorf("%v stopped while its agent restarts", stopped)
	}
	if stopped := c.pass(3 * time.Second); !slices.Equal(stopped, []string{"a"}) {
		t.Errorf("%v stopped, want a, whose agent did not come back", stopped)
	}
	if !c.Gone("a") || c.Gone("a") {
		t.Error("a Lease goes once")
	}
	c.want("a", NoLease)
}

func TestANodeThatNeverBeginsToRenewStops(t *testing.T) {
	c := newClinic(t, "other")
	c.pass(10 * time.Second)
	c.Expect("dead")
	c.Expect("late")
	c.Expect("other")
	c.want("dead", NoLease)
	c.want("other", Alive)
	if stopped := c.pass(10 * time.Second); len(stopped) > 0 {
		t.Errorf("%v stopped within the time of a restart", stopped)
	}
	c.renewals["late"] = true
	if stopped := c.pass(15 * time.Second); !slices.Equal(stopped, []string{"dead"}) {
		t.Errorf("%v stopped, want the one without any renewal", stopped)
	}
	c.want("dead", Stopped)
	c.want("late", Alive)
	c.pass(2 * time.Minute)
	c.want("dead", NoLease) // the node may work by now, but no Lease was requested from it
}
