// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/testing/eventually"
)

func TestAPoisonedOwnerFailsAlone(t *testing.T) {
	server := nbtest.Start(t)
	proxy := server.Proxy()
	e := lead(t, proxy.Endpoint())
	e.apply(subnet("s"), subnetRows("s"))
	// A duplicate name: the server detects this violation of the schema only at commit, for the whole batch.
	e.apply(pod("first"), podRows("first", "s"))
	poison := podRows("poison", "s")
	poison[0].Model.(*nb.LogicalSwitchPort).Name = "first.ns"
	// An invalid value, which the server detects at that operation.
	poison2 := []desired.Row{{
		Key: "acl", Parent: new(desired.SwitchACLs(switchRef("s"))),
		Model: &nb.ACL{Action: "no-such-action", Direction: "from-lport", Match: "1", Priority: 1},
	}}

	sent := proxy.Transactions()
	names := podNames(100)
	var mu sync.Mutex
	poisoned := map[string]error{}
	var running sync.WaitGroup
	for _, bad := range []step{{pod("poison"), poison}, {pod("poison2"), poison2}} {
		running.Go(func() {
			err := e.try(bad.owner, bad.rows)
			mu.Lock()
			defer mu.Unlock()
			poisoned[bad.owner.Name] = err
		})
	}
	e.applyAll(names, func(name string) []desired.Row { return podRows(name, "s") })
	running.Wait()
	for name, reason := range map[string]string{"poison": "first.ns", "poison2": "no-such-action"} {
		if err := poisoned[name]; err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: got %v, want an error about %s", name, err, reason)
		}
	}
	if got := len(server.Rows("Logical_Switch_Port")); got != len(names)+1 {
		t.Errorf("%d ports, want %d", got, len(names)+1)
	}
	if used := proxy.Transactions() - sent; used > 40 {
		t.Errorf("%d transactions for two bad owners among a hundred", used)
	}
	e.apply(pod("poison"), podRows("poison", "s")) // the owner recovers
}

// If the server drops the connection because of one owner, the other owners continue. The owner is reported, with a back-off
// before its retry.
func TestAnOwnerThatEndsTheConnectionFailsAlone(t *testing.T) {
	server := nbtest.Start(t)
	proxy := server.Proxy()
	e := lead(t, proxy.Endpoint())
	e.apply(subnet("s"), subnetRows("s"))
	proxy.Poison("poisonous")
	sent := proxy.Transactions()
	poison := podRows("poisonous", "s")
	var guilty error
	var running sync.WaitGroup
	running.Go(func() { guilty = e.try(pod("guilty"), poison) })
	names := podNames(100)
	e.applyAll(names, func(name string) []desired.Row { return podRows(name, "s") })
	running.Wait()
	if !errors.Is(guilty, northbound.ErrNoAnswer) {
		t.Errorf("got %v, want ErrNoAnswer", guilty)
	}
	if got := len(server.Rows("Logical_Switch_Port")); got != len(names) {
		t.Errorf("%d ports, want %d", got, len(names))
	}
	if used := proxy.Transactions() - sent; used > 50 {
		t.Errorf("%d transactions for one bad owner among a hundred", used)
	}
	refused := e.Refused()
	if len(refused) != 1 || refused[0].Owner != pod("guilty") || refused[0].Since.IsZero() {
		t.Errorf("refused: %v, want the guilty owner", refused)
	}

	// During the back-off, Apply returns without a transaction and closes no connection of other owners.
	sent = proxy.Transactions()
	for range 20 {
		if err := e.try(pod("guilty"), poison); !errors.Is(err, northbound.ErrNoAnswer) {
			t.Errorf("got %v, want ErrNoAnswer", err)
		}
	}
	if used := proxy.Transactions() - sent; used > 8 { // each attempt: two losses and their barriers
		t.Errorf("%d transactions while the owner rests", used)
	}
	proxy.Poison("")
	eventually.Wait{For: "the owner that is well again has its rows", Pause: 10 * time.Millisecond}.Holds(t, func() bool {
		return e.try(pod("guilty"), poison) == nil
	})
	if refused := e.Refused(); len(refused) != 0 {
		t.Errorf("refused: %v, want none", refused)
	}
}

func TestTextThatTheServerCannotParseIsNotSent(t *testing.T) {
	server := nbtest.Start(t)
	proxy := server.Proxy()
	e := lead(t, proxy.Endpoint())
	e.apply(subnet("s"), subnetRows("s"))
	onSwitch := new(desired.SwitchPorts(switchRef("s")))
	sent := proxy.Transactions()
	for _, bad := range []string{"a\x00b", "\x00", "\xff"} {
		for name, model := range map[string]*nb.LogicalSwitchPort{
			"text":             {Name: bad},
			"optional text":    {Name: "p", Dhcpv4Options: &bad},
			"a set":            {Name: "p", PortSecurity: []string{"ok", bad}},
			"a set, first":     {Name: "p", PortSecurity: []string{bad, "ok"}},
			"a value of a map": {Name: "p", Options: map[string]string{"virtual-parents": bad}},
			"a key of a map":   {Name: "p", Options: map[string]string{bad: "x"}},
			"an external ID":   {Name: "p", ExternalIDs: map[string]string{"x": bad}},
		} {
			err := e.try(pod("a"), []desired.Row{{Key: "ovn", Model: model, Parent: onSwitch}})
			if err == nil || !strings.Contains(err.Error(), "null character") {
				t.Errorf("%q as %s: got %v, want an error about the null character", bad, name, err)
			}
		}
	}
	if used := proxy.Transactions() - sent; used != 0 {
		t.Errorf("%d transactions were sent", used)
	}
	if refused := e.Refused(); len(refused) != 1 || refused[0].Owner != pod("a") {
		t.Errorf("refused: %v, want the owner", refused)
	}
}

func TestRowsThatMakeNoSenseAreRefused(t *testing.T) {
	server := nbtest.Start(t)
	e := lead(t, server.Endpoint())
	e.apply(subnet("s"), subnetRows("s"))
	onSwitch := new(desired.SwitchPorts(switchRef("s")))
	for name, rows := range map[string][]desired.Row{
		"two rows of one key":            append(subnetRows("x"), subnetRows("y")...),
		"a port without a parent":        {{Key: "k", Model: &nb.LogicalSwitchPort{Name: "p"}}},
		"a switch with a parent":         {{Key: "k", Model: &nb.LogicalSwitch{}, Parent: onSwitch}},
		"a policy on a switch's ports":   {{Key: "k", Model: &nb.LogicalRouterPolicy{}, Parent: onSwitch}},
		"a row without a possible owner": {{Key: "k", Model: &nb.NBGlobal{}}},
		"no model":                       {{Key: "k"}},
		"a nil model":                    {{Key: "k", Model: (*nb.LogicalSwitch)(nil)}},
		"a member of a parent's set":     {{Key: "k", Model: &nb.LogicalSwitchPort{}, Parent: onSwitch, Members: []desired.Set{*onSwitch}}},
		"a switch in a port group":       {{Key: "k", Model: &nb.LogicalSwitch{}, Members: []desired.Set{desired.GroupPorts(groupRef("n"))}}},
		"an element in a set of ports": {{
			Key: "k", Model: &nb.LogicalSwitch{}, Elements: []desired.Element{{Of: desired.GroupPorts(groupRef("n")), Value: "x"}},
		}},
		"a reference in a name": {{Key: "k", Model: &nb.LogicalSwitch{}, References: []desired.Reference{{Column: "name"}}}},
		"two references in one": {{
			Key: "k", Model: &nb.LogicalSwitchPort{}, Parent: onSwitch,
			References: []desired.Reference{{Column: "dhcpv4_options", To: []desired.Ref{switchRef("s"), switchRef("s")}}},
		}},
	} {
		if err := e.try(pod("a"), rows); err == nil || errors.Is(err, northbound.ErrWaiting) {
			t.Errorf("%s: got %v, want an error", name, err)
		}
	}
	if got := e.Owners("Pod"); len(got) != 0 {
		t.Errorf("something was written: %v", got)
	}
}
