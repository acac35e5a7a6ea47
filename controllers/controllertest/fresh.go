// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package controllertest

import (
	"fmt"
	"os"
	"time"

	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/testing/eventually"
)

// DiffersFromFresh switches the comparison at the end of the test off. Without it, `make test-long` compares the database, when the controllers
// have nothing to do, with the rows that a fresh process writes to an empty database for the same objects: assertions on some rows do not see
// surplus ones. The reason is why a fresh process writes other rows.
func (w *World) DiffersFromFresh(reason string) { w.differs = reason }

// compare ends a process. If it was the last one and ran until the end of a test that passed, it compares its rows with the rows of a fresh process.
func (w *World) compare(p *Process, steps Steps) {
	w.Helper()
	defer p.Stop()
	last := w.processes[len(w.processes)-1]
	if os.Getenv("KILN_TEST_FULL") == "" || w.differs != "" || w.Failed() || w.Skipped() || p != last || p.ended() {
		return
	}
	have := w.settled(p)
	for _, process := range w.processes {
		process.Stop()
	}
	w.Database = nbtest.Start(w.T)
	fresh := w.start(steps)
	eventually.Wait{For: "the rows (+) must be the rows of a fresh process with an empty database (-)", Limit: freshLimit}.Empty(w, func() string {
		return w.Database.Content().Differences(have)
	})
	fresh.Stop()
}

// freshLimit bounds the wait for the rows of a fresh process.
const freshLimit = 30 * time.Second

// quiet is how long a process does nothing until its rows count as complete.
const quiet = 2 * aMoment

// settled waits until a process is quiet, and returns the content of its database.
func (w *World) settled(p *Process) nbtest.Content {
	w.Helper()
	work, since := "", time.Now()
	w.Eventually(func() string {
		if now := fmt.Sprint(w.passes(), p.proxy.Transactions()); now != work {
			work, since = now, time.Now()
		}
		if time.Since(since) < quiet {
			return "the controllers are at work"
		}
		return ""
	})
	return w.Database.Content()
}

// ended reports whether the process was stopped.
func (p *Process) ended() bool {
	select {
	case <-p.stopped:
		return true
	default:
		return false
	}
}
