// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
)

// A dump of interfaces can lack entries when pods' interfaces are added or removed at the same time.
func TestAListThatWasInterruptedIsAskedForAgain(t *testing.T) {
	times, broken := 0, errors.New("broken")
	dump := func(then error) func() ([]int, error) {
		times = 0
		return func() ([]int, error) {
			if times++; times < 3 {
				return []int{1}, netlink.ErrDumpInterrupted
			}
			return []int{1, 2}, then
		}
	}
	if list, err := Whole(dump(nil)); err != nil || len(list) != 2 {
		t.Errorf("got %v, %v", list, err)
	}
	if _, err := Whole(dump(broken)); !errors.Is(err, broken) || times != 3 {
		t.Errorf("after %d times: %v", times, err)
	}
	if _, err := Whole(dump(netlink.ErrDumpInterrupted)); !errors.Is(err, netlink.ErrDumpInterrupted) {
		t.Errorf("a list that is never whole is taken for one: %v", err)
	}
}
