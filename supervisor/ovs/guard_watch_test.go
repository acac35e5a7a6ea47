// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/knftables"

	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
	"github.com/kiln-net/kiln/supervisor/portguard"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

// TestChangesOfTheTableAreReverted changes the table as other programs do, such as a firewall or `systemctl restart nftables`. Each change is noticed by
// an event, and without events by a comparison.
func TestChangesOfTheTableAreReverted(t *testing.T) {
	t.Parallel()
	for name, keep := range map[string]func(context.Context, *guard){
		"by events": func(ctx context.Context, g *guard) { g.refresh = time.Hour; g.run(ctx, "node-1", nil) },
		"by comparisons": func(ctx context.Context, g *guard) {
			g.refresh = 10 * time.Millisecond
			g.keep(ctx, "node-1", nil, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if nodetest.Again(t) {
				changesAreReverted(t, keep)
			}
		})
	}
}

func changesAreReverted(t *testing.T, keep func(context.Context, *guard)) {
	there, ports := nodetest.Wire(t), []int{6641, 6649}
	listen(t, ports)
	g := newGuard(Options{ConfigDir: t.TempDir(), OVNRunDir: t.TempDir(), Log: supervisortest.Log(t)})
	g.follow(guarded(), "node-1")
	must.Succeed(t, g.apply(t.Context()))
	// nft(8) reads the table independently of the code under test, and knftables returns no content of rules.
	table := func(flags ...string) string {
		out, _ := exec.CommandContext(t.Context(), "nft", append(flags, "list", "table", "inet", guardTable)...).Output() // fails without the table
		return string(out)
	}
	written := table("-a")
	must.Succeed(t, g.apply(t.Context())) // as after the notifications of its own transaction
	if now := table("-a"); now != written {
		t.Errorf("an unchanged table is written again, which causes the next notification: %s, before %s", now, written)
	}
	want := table()
	rule := regexp.MustCompile(`tcp reset # handle (\d+)`).FindStringSubmatch(written)[1] // the first of chain pods-input; a table of the same rules has the same handles
	background(t, func(ctx context.Context) error { keep(ctx, g); return nil })
	for i, change := range []string{
		"flush ruleset",
		"delete table inet kiln-databases",
		"flush table inet kiln-databases",
		"flush chain inet kiln-databases input",
		"flush chain inet kiln-databases pods-forward; delete chain inet kiln-databases pods-forward",
		"insert rule inet kiln-databases input accept",
		"replace rule inet kiln-databases pods-input handle " + rule + " accept",
		"flush set inet kiln-databases northbound4",
		"add element inet kiln-databases clients4 { 192.0.2.2 }",
		"delete element inet kiln-databases databases6 { 2001:db8::1 }; add element inet kiln-databases databases6 { 2001:db8::5 }",
		"add table inet kiln-databases { flags dormant; }",
		"flush ruleset; add table inet kiln-databases",
	} {
		nodetest.NFT(t, change)
		supervisortest.Eventually(t, "the table is as before, after "+change, func() error {
			if now := table(); now != want || g.rewritten.Load() != int64(i+1) {
				return fmt.Errorf("it is %s, before it was %s; %d changes were reverted", now, want, g.rewritten.Load())
			}
			return nil
		})
	}
	if open := reach(t, there, "192.0.2.1", ports); len(open) > 0 {
		t.Errorf("open are %v", open)
	}
}

// TestTheGuardIsReportedWithoutTheDisk limits the ports on a node whose disk cannot be written.
func TestTheGuardIsReportedWithoutTheDisk(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	o := Options{ConfigDir: t.TempDir(), OVNRunDir: t.TempDir()}
	must.Succeed(t, os.WriteFile(o.certificates(), nil, 0o600)) // no directory can be made there
	g := newGuard(o)
	g.follow(guarded(), "node-1")
	for range 2 {
		if err := g.apply(t.Context()); err == nil || !strings.Contains(err.Error(), "preserve") {
			t.Errorf("the failure to preserve the limits is not reported: %v", err)
		}
	}
	if !portguard.Reported(o.OVNRunDir) {
		t.Error("the databases do not learn that their ports are closed")
	}
	if g.applied.Load() || g.rewritten.Load() > 0 {
		t.Errorf("applied is %t, the table was written again %d times", g.applied.Load(), g.rewritten.Load())
	}
	must.Succeed(t, os.Remove(o.certificates()))
	must.Succeed(t, g.apply(t.Context()))
	if _, err := os.Stat(g.file); err != nil || !g.applied.Load() {
		t.Errorf("the limits are not preserved once the disk can be written: %v", err)
	}
}

// unusable is nftables whose transactions fail.
type unusable struct{ knftables.Interface }

func (unusable) Run(context.Context, *knftables.Transaction) error {
	return errors.New("operation not permitted")
}

// TestAFailureOfNFTablesIsReported makes nftables unusable while the table exists, and then without a table.
func TestAFailureOfNFTablesIsReported(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	o := Options{ConfigDir: t.TempDir(), OVNRunDir: t.TempDir()}
	g := newGuard(o)
	g.follow(guarded(), "node-1")
	must.Succeed(t, g.apply(t.Context()))
	usable := g.nft
	g.nft = unusable{usable}
	changed := guarded()
	changed.Status.Clients = append(changed.Status.Clients, "192.0.2.2")
	g.follow(changed, "node-1")
	fails := func() {
		t.Helper()
		if err := g.apply(t.Context()); err == nil || g.applied.Load() {
			t.Errorf("error %v, applied %t", err, g.applied.Load())
		}
	}
	fails()
	if !portguard.Reported(o.OVNRunDir) {
		t.Error("the former limits are in the table, and not reported")
	}
	nodetest.NFT(t, "flush ruleset")
	fails()
	if failure := portguard.Failure(o.OVNRunDir); portguard.Reported(o.OVNRunDir) || failure != "operation not permitted" {
		t.Errorf("without a table, it is reported (%t), with the failure %q", portguard.Reported(o.OVNRunDir), failure)
	}
	restarted := newGuard(o)
	restarted.nft = unusable{usable}
	if err := restarted.restore(t.Context()); err == nil || portguard.Reported(o.OVNRunDir) {
		t.Errorf("after a restart: error %v, reported %t", err, portguard.Reported(o.OVNRunDir))
	}
	g.nft = usable
	must.Succeed(t, g.apply(t.Context()))
	if failure := portguard.Failure(o.OVNRunDir); !portguard.Reported(o.OVNRunDir) || failure != "" {
		t.Errorf("once nftables work, it is reported: %t, with the failure %q", portguard.Reported(o.OVNRunDir), failure)
	}
}
