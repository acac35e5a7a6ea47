// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package egressaddress_test

import (
	"fmt"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"

	ovsdbclient "github.com/kiln-net/kiln/internal/ovsdb/client"
)

// guard reads each state of the database, and records the states in which packets of a guarded pod can leave with the address of a node although its packets were led before, or in
// which two routers have one address.
type guard struct {
	mu       sync.Mutex
	policies map[string]string // matches, by UUID
	sets     map[string]string // UUIDs, by name
	sources  map[string]string // by UUID
	pods     map[string]*guarded
	wrong    []string
}

// guarded is the state of a pod by its address.
type guarded struct {
	name string
	led  bool
}

// guard starts a guard that runs until the test ends.
func (w *world) guard() *guard {
	w.Helper()
	g := &guard{policies: map[string]string{}, sets: map[string]string{}, sources: map[string]string{}, pods: map[string]*guarded{}}
	session, err := ovsdbclient.Northbound(w.Context(), ovsdbclient.Options{Endpoints: []string{w.Database.Endpoint()}})
	w.Must(err)
	w.Cleanup(session.Close)
	session.Observe(g.observe)
	return g
}

// watch guards pods from now on, and no others.
func (g *guard) watch(pods ...*corev1.Pod) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pods = map[string]*guarded{}
	for _, p := range pods {
		g.pods[addresses(p)[0]] = &guarded{name: p.Name}
	}
}

// check fails the test with what the guard recorded.
func (g *guard) check(w *world, step string) {
	w.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, wrong := range g.wrong {
		w.Errorf("%s: %s", step, wrong)
	}
	for _, p := range g.pods {
		if !p.led {
			w.Errorf("%s: the packets of pod %s were never led", step, p.name)
		}
	}
	g.wrong = nil
}

func (g *guard) observe(r *ovsdbclient.Replica, u ovsdbclient.Update) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, change := range u.Rows {
		switch row := change.Old.(type) {
		case *nb.LogicalRouterPolicy:
			delete(g.policies, change.UUID)
		case *nb.AddressSet:
			delete(g.sets, row.Name)
		case *nb.NAT:
			delete(g.sources, change.UUID)
		}
		switch row := change.New.(type) {
		case *nb.LogicalRouterPolicy:
			if row.Priority == 29118 {
				g.policies[change.UUID] = row.Match
			}
		case *nb.AddressSet:
			g.sets[row.Name] = change.UUID
		case *nb.NAT:
			g.sources[change.UUID] = row.ExternalIP
		}
	}
	has := map[string]bool{}
	for _, source := range g.sources {
		if has[source] {
			g.wrong = append(g.wrong, "two routers have "+source)
		}
		has[source] = true
	}
	for address, p := range g.pods {
		leads := false
		for _, match := range g.policies {
			leads = leads || g.matches(r, match, address)
		}
		if p.led && !leads {
			g.wrong = append(g.wrong, fmt.Sprintf("the packets of pod %s leave with another source: the policies are for %v", p.name, g.policies))
		}
		p.led = leads
	}
}

// matches reports whether a match is for an address, as ovn-controller reads it: not if one of its sets does not exist.
func (g *guard) matches(r *ovsdbclient.Replica, match, address string) (matches bool) {
	for _, word := range strings.FieldsFunc(match, func(r rune) bool { return strings.ContainsRune(" {},", r) }) {
		name, is := strings.CutPrefix(word, "$")
		if !is {
			continue
		}
		uuid, exists := g.sets[name]
		if !exists {
			return false
		}
		set := r.Set(ovsdbclient.SetID{Table: desired.TableAddressSet, Column: "addresses", UUID: uuid})
		matches = matches || set != nil && set.Has(address)
	}
	return matches
}
