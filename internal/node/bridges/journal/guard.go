// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/go-logr/logr"
	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/internal/node/bridges/kernel"
)

// Guard undoes moves that were not completed: at their deadline, whether the process that began them lives or not. It repeats a restoration when
// ovs-vswitchd attaches the interface again. `kiln ovs` and the agent run one each.
type Guard struct {
	Directory Directory
	Log       logr.Logger
	// Returned is called after an interface was restored. Optional.
	Returned func()
	// Grace is how long the interface of a bridge that has taken over addresses or routes may be missing, without carrier or without its addresses, and ovs-vswitchd may be dead. It makes the
	// interface again when it starts.
	// 30 s if zero.
	Grace time.Duration

	missing map[string]time.Time
}

// aliveInterval is the pause between two looks at ovs-vswitchd.
const aliveInterval = 10 * time.Second

// guardRetry is the pause after a failed restoration.
const guardRetry = time.Second

// Run guards moves until ctx ends.
func (g *Guard) Run(ctx context.Context) error {
	g.missing, g.Directory.Log = map[string]time.Time{}, g.Log
	if g.Grace == 0 {
		g.Grace = 30 * time.Second
	}
	if err := os.MkdirAll(g.Directory.Path, 0o700); err != nil {
		return fmt.Errorf("make the directory of journals: %w", err)
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch journals: %w", err)
	}
	defer watcher.Close()
	if err := watcher.Add(g.Directory.Path); err != nil {
		return fmt.Errorf("watch journals: %w", err)
	}
	links, done := make(chan netlink.LinkUpdate, 64), make(chan struct{})
	if err := netlink.LinkSubscribe(links, done); err != nil {
		return fmt.Errorf("subscribe to interfaces: %w", err)
	}
	defer func() { // lets the goroutine that reads the socket end
		close(done)
		go func() {
			for range links { // until the channel is closed
			}
		}()
	}()
	for {
		timer := time.NewTimer(g.pass(ctx))
		open := true
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		case _, open = <-watcher.Events:
		case err := <-watcher.Errors:
			g.Log.Error(err, "watching journals")
		case _, open = <-links:
		}
		timer.Stop()
		if !open {
			return errors.New("a subscription to journals or interfaces ended")
		}
	}
}

// pass undoes the moves whose deadlines have passed, and returns the time until the next pass.
func (g *Guard) pass(ctx context.Context) time.Duration {
	bridges, err := g.Directory.List()
	if err != nil {
		g.Log.Error(err, "reading journals")
		return guardRetry
	}
	next := time.Duration(math.MaxInt64)
	for _, bridge := range bridges {
		j, err := g.Directory.Read(bridge)
		if err == nil && j != nil {
			next = min(next, g.guard(ctx, *j))
			continue
		}
		if err != nil {
			g.Log.Error(err, "reading the journal", "bridge", bridge)
		}
	}
	return next
}

// guard checks one move and returns the time until the next check.
func (g *Guard) guard(ctx context.Context, j Journal) time.Duration {
	due, left := g.due(&j)
	if !due {
		return left
	}
	restored := false
	err := g.Directory.putBackIf(ctx, j.Bridge, func(now *Journal) (string, bool) {
		restored, _ = g.due(now)
		if left, name, limited := now.ends(); limited && left <= 0 && now.Phase == PhaseMoved {
			return name + " had a limited lifetime, which was not renewed", restored
		}
		if now.Phase == PhaseMoved {
			return "the interface of bridge " + now.Bridge + " was missing or had no carrier or addresses, or ovs-vswitchd did not run, for " + g.Grace.String(), restored
		}
		// The process that began it judges before the deadline, so it is dead or hangs.
		return "kiln ovs did not complete the move until its deadline", restored
	})
	if errors.Is(err, errNotOurs) {
		return math.MaxInt64
	}
	if err != nil {
		g.Log.Error(err, "restoring the interface of a bridge", "bridge", j.Bridge, "interface", j.Uplink)
		return guardRetry
	}
	if !restored { // by another process
		return 0
	}
	g.Log.Info("the interface of a bridge has its addresses back", "bridge", j.Bridge, "interface", j.Uplink, "phase", j.Phase)
	if g.Returned != nil {
		g.Returned()
	}
	return guardRetry // to see whether it holds
}

// due reports whether the interface must be restored now; if not, after which time to check again.
func (g *Guard) due(j *Journal) (bool, time.Duration) {
	if j.Phase != PhaseMoved {
		delete(g.missing, j.Bridge)
	}
	switch {
	case j.Phase == PhaseReturned:
		return !j.Done || j.Kernel && kernel.Attached(j.Uplink), math.MaxInt64
	case j.Phase == PhaseTrial:
		return j.Left() <= 0, max(j.Left(), 0)
	case j.Before.Carries() == "":
		return false, math.MaxInt64
	}
	next := time.Duration(math.MaxInt64)
	if left, _, limited := j.ends(); limited {
		if left <= 0 {
			return true, 0
		}
		next = left
	}
	if j.Kernel { // nothing reports the end of ovs-vswitchd
		next = min(next, aliveInterval, g.Grace)
	}
	// In the userspace datapath, the interface of a dead ovs-vswitchd stays, without carrier. In the kernel's, it stays with its carrier, and the kernel forwards only
	// by the flows that it has.
	link, err := kernel.Link(j.Bridge)
	works := link != nil && link.Attrs().OperState != netlink.OperDown && (!j.Kernel || !g.Directory.switchEnded(j.Bridge))
	if works && err == nil {
		works, err = j.Before.On(link)
	}
	if err != nil || works {
		delete(g.missing, j.Bridge)
		return false, next
	}
	since, found := g.missing[j.Bridge]
	if !found {
		since = time.Now()
		g.missing[j.Bridge] = since
	}
	left := g.Grace - time.Since(since)
	return left <= 0, max(left, 0)
}
