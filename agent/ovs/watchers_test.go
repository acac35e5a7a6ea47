// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"slices"
	"testing"
)

func TestWatchersAreSignaledOfTheirInterfaceOnly(t *testing.T) {
	var w watchers
	var all []string
	w.subscribe(func(name string) { all = append(all, name) })
	first, endFirst := w.watch("p1")
	second, endSecond := w.watch("p1")
	signaled := func(changed <-chan struct{}) bool {
		select {
		case <-changed:
			return true
		default:
			return false
		}
	}
	w.signal("p0")
	if signaled(first) || signaled(second) {
		t.Error("a watcher of p1 is signaled of p0")
	}
	for range 3 { // a send to a full channel must not block
		w.signal("p1")
	}
	for i, changed := range []<-chan struct{}{first, second} {
		if !signaled(changed) || signaled(changed) {
			t.Errorf("watcher %d has not exactly one signal of three changes", i)
		}
	}
	endFirst()
	w.signal("p1")
	if signaled(first) || !signaled(second) {
		t.Error("after the end of the first watcher, the second one is not the only one with a signal")
	}
	endSecond()
	if n := w.byName.Len(); n != 0 {
		t.Errorf("after the last watcher there are %d", n)
	}
	if want := []string{"p0", "p1", "p1", "p1", "p1"}; !slices.Equal(all, want) {
		t.Errorf("the subscriber has %v, want %v", all, want)
	}
}
