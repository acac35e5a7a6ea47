// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cniserver

import (
	"errors"
	"testing"
	"time"

	"github.com/kiln-net/kiln/agent/ovs"
	"github.com/kiln-net/kiln/agent/sandbox"
	"github.com/kiln-net/kiln/internal/must"
)

func TestADeletionDuringARepairIsNotForgotten(t *testing.T) {
	var r repairs
	r.portDeleted(ovs.Attachment{Name: "a_h", ContainerID: "c"})
	handled, _ := r.absence("a_h")
	r.fail("a_h")
	r.portDeleted(ovs.Attachment{Name: "a_h", ContainerID: "c"}) // the port was added again, and deleted again
	r.done("a_h", handled)
	again, known := r.absence("a_h")
	if !known || again.ContainerID != "c" || r.missing() != 0 {
		t.Errorf("after the repair of the first deletion: known %t, %+v, missing %d", known, again, r.missing())
	}
	r.portMissing("a_h")
	if now, _ := r.absence("a_h"); !now.since.Equal(again.since) || now.ContainerID != "c" {
		t.Errorf("a comparison replaces the last record of the port: %+v", now)
	}
	r.done("a_h", again)
	if _, known := r.absence("a_h"); known {
		t.Error("a repaired port is still recorded")
	}
}

// TestAComparisonWaitsForTheEndOfADEL has a link without a port, as between both steps of a DEL that another agent serves.
func TestAComparisonWaitsForTheEndOfADEL(t *testing.T) {
	var s Server
	s.repairs.portMissing("a_h")
	if result, err := s.repair(t.Context(), "a_h"); err != nil || result.RequeueAfter <= 0 || result.RequeueAfter > repairDelay {
		t.Errorf("result %+v, error %v", result, err)
	}
}

// TestARepairDoesNotWaitForAnADD has an ADD that waits for the port that was deleted.
func TestARepairDoesNotWaitForAnADD(t *testing.T) {
	var s Server
	unlock, err := s.locks.lock(t.Context(), "c", "eth0")
	must.Succeed(t, err)
	defer unlock()
	a := ovs.Attachment{Name: "a_h", ContainerID: "c", IfName: "eth0"}
	if _, err := s.restore(t.Context(), a); !errors.Is(err, errBusy) {
		t.Errorf("error %v", err)
	}
	s.repairs.record("a_h", absence{a, time.Now().Add(-time.Minute)})
	if result, err := s.repair(t.Context(), "a_h"); err != nil || result.RequeueAfter != repairDelay {
		t.Errorf("result %+v, error %v", result, err)
	}
	if _, known := s.repairs.absence("a_h"); !known {
		t.Error("the port is forgotten")
	}
}

func TestNotesOfReplacedContainers(t *testing.T) {
	first, second := note{"c1", "eth0", "kube-ovn", "uid", "/run/netns/1", "ovn"}, note{"c2", "eth0", "kube-ovn", "uid", "/run/netns/2", "ovn"}
	third, other := note{"c2", "net1", "net1", "uid", "/run/netns/2", "net1.default.ovn"}, note{"c3", "eth0", "kube-ovn", "uid-2", "/run/netns/3", "ovn"}
	links := map[string]sandbox.HostLink{
		"1_h": {Index: 7, Note: first.String()}, "2_h": {Index: 9, Note: second.String()}, "3_h": {Index: 10, Note: third.String()},
		"4_h": {Index: 11, Note: other.String()}, "5_h": {Index: 12, Note: ""}, "6_h": {Index: 13, Note: "kiln1 of another program"},
	}
	for name, want := range map[string]bool{"1_h": true, "2_h": false, "3_h": false, "4_h": false} {
		n, is := parseNote(links[name].Note)
		if !is || n.String() != links[name].Note || superseded(links, name, n) != want {
			t.Errorf("%s: %+v is a note: %t, replaced: %t", name, n, is, !want)
		}
	}
	for name, n := range map[string]note{"without a provider": {"c", "eth0", "n", "u", "/p", ""}, "with a space": {"c", "eth0", "n", "u", "/p q", "ovn"}} {
		if text := n.String(); text != "" {
			t.Errorf("%s: %q", name, text)
		}
	}
}
