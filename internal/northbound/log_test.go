// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr/funcr"

	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// TestChangesAreLoggedPerOwner: at verbosity 1 the log has the number of changed rows of each owner, and the owners that wait.
func TestChangesAreLoggedPerOwner(t *testing.T) {
	var mu sync.Mutex
	var lines []string
	log := funcr.New(func(_, line string) {
		mu.Lock()
		defer mu.Unlock()
		lines = append(lines, line)
	}, funcr.Options{Verbosity: 1})
	e := prepareWith(t, log, nbtest.Start(t).Endpoint())
	e.run()
	e.takeLead()
	if err := e.try(pod("a"), podRows("a", "s", "n")); !errors.Is(err, northbound.ErrWaiting) {
		t.Fatalf("got %v, want ErrWaiting", err)
	}
	for range 2 { // the second time nothing changes
		e.apply(subnet("s"), subnetRows("s"))
		e.apply(node("n"), nodeRows("n"))
		e.apply(pod("a"), podRows("a", "s", "n"))
	}
	changed := podRows("a", "s", "n")
	changed[0].Model.(*nb.LogicalSwitchPort).Addresses = []string{"00:00:00:00:00:01 10.16.0.3"}
	e.apply(pod("a"), changed)
	e.apply(pod("a"), nil)
	e.stop()

	ofPod := slices.DeleteFunc(lines, func(line string) bool { return !strings.Contains(line, `"owner"="Pod/`) })
	for i, want := range []string{
		`"level"=1 "msg"="rows wait" "owner"="Pod/ns/a" "reason"="waiting for a row of another owner`,
		`"level"=1 "msg"="committed rows" "owner"="Pod/ns/a" "inserted"=1 "updated"=0 "deleted"=0 "valuesAdded"=2 "valuesRemoved"=0`,
		`"level"=1 "msg"="committed rows" "owner"="Pod/ns/a" "inserted"=0 "updated"=1 "deleted"=0`,
		`"level"=1 "msg"="committed rows" "owner"="Pod/ns/a" "inserted"=0 "updated"=0 "deleted"=1`,
	} {
		if i >= len(ofPod) || !strings.HasPrefix(ofPod[i], want) {
			t.Errorf("line %d is not %s", i, want)
		}
	}
	if t.Failed() || len(ofPod) != 4 {
		t.Errorf("lines about the pod:\n%s", strings.Join(ofPod, "\n"))
	}
}
