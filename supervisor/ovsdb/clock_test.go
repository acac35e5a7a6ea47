// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

// fakeTime gives a program its own clock (libfaketime(1)); `make prepare` installs it.
const fakeTime = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"

// clock is the wall clock of one member's machine: a file with its offset in seconds. Monotonic time is the kernel's, as after a
// jump of a real clock.
type clock string

func newClock(t *testing.T) clock {
	t.Helper()
	if _, err := os.Stat(fakeTime); err != nil {
		t.Fatalf("%v; run: make prepare", err)
	}
	c := clock(filepath.Join(t.TempDir(), "clock"))
	c.jump(t, 0)
	return c
}

// under returns a command whose program has this clock.
func (c clock) under(argv []string) []string {
	return append([]string{
		"/usr/bin/env", "LD_PRELOAD=" + fakeTime, "FAKETIME_TIMESTAMP_FILE=" + string(c), "FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1",
	}, argv...)
}

// jump sets the clock ahead of the true time, and checks that programs see it.
func (c clock) jump(t *testing.T, ahead time.Duration) {
	t.Helper()
	if err := os.WriteFile(string(c), fmt.Appendf(nil, "%+d\n", int(ahead.Seconds())), 0o600); err != nil {
		t.Fatal(err)
	}
	argv := c.under(append(supervisortest.Program(t, "usr/bin/date"), "+%s"))
	out, err := exec.Command(argv[0], argv[1:]...).Output()
	if err != nil {
		t.Fatal(err)
	}
	printed, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
	if off := time.Unix(printed, 0).Sub(time.Now().Add(ahead)); err != nil || math.Abs(off.Seconds()) > 60 {
		t.Fatalf("a program with a clock that is %s ahead prints %s (%v)", ahead, out, err)
	}
}

// TestClockJumps checks that a jump of a member's clock does not affect the cluster: Raft's timers use monotonic time, and
// connections stay.
func TestClockJumps(t *testing.T) {
	tr := newTrial(t)
	recorded := v1alpha1.DatabaseStatus{BootstrapNode: "cp-1"}
	clocks := map[string]clock{}
	for i, node := range []string{"cp-1", "cp-2", "cp-3"} {
		m := tr.add(node, "127.0.0."+strconv.Itoa(20+i))
		clocks[node] = newClock(t)
		m.options.Programs.Server = clocks[node].under(m.options.Programs.Server)
		recorded.Members = append(recorded.Members, v1alpha1.DatabaseMember{Node: node, Address: m.options.Address.String()})
		tr.start(m, recorded)
		status := tr.untilConnected(m, i+1)
		recorded.ClusterID, recorded.Members[i].ServerID = status.ClusterID, status.ServerID
	}
	leader := tr.members["cp-1"]
	before := tr.untilConnected(leader, 3)
	rows := 0
	for _, jump := range []struct {
		node  string
		ahead time.Duration
	}{{"cp-1", 30 * time.Minute}, {"cp-1", -30 * time.Minute}, {"cp-2", 30 * time.Minute}, {"cp-2", -30 * time.Minute}} {
		clocks[jump.node].jump(t, jump.ahead)
		// Longer than the election timer, after which followers replace a silent leader.
		for end := time.Now().Add(6 * time.Second); time.Now().Before(end); rows++ {
			leader.insert(t, fmt.Sprintf("row%06d", rows))
		}
		for node, m := range tr.members {
			if now := tr.untilConnected(m, 3); now.Term != before.Term || now.Leader != before.Leader {
				t.Errorf("clock of %s %s ahead: %s is in term %d with leader %s, was %d with %s",
					jump.node, jump.ahead, node, now.Term, now.Leader, before.Term, before.Leader)
			}
		}
		clocks[jump.node].jump(t, 0)
	}
	for _, m := range tr.members {
		supervisortest.Eventually(t, m.options.Node+" has all rows", func() error {
			if have := strings.Fields(m.content(t)); len(have) != rows || !slices.IsSorted(have) {
				return errors.New(strconv.Itoa(len(have)))
			}
			return nil
		})
	}
}
