// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/seed"
)

// randomPod returns the rows of a pod on a random switch, in random groups and sets, or none.
func randomPod(r *rand.Rand, name string) []desired.Row {
	if r.IntN(5) == 0 {
		return nil
	}
	var groups, sets []string
	for _, n := range []string{"0", "1", "2"} {
		if r.IntN(2) == 0 {
			groups = append(groups, n)
		}
		if r.IntN(2) == 0 {
			sets = append(sets, n)
		}
	}
	on := fmt.Sprint(r.IntN(3))
	rows := podRows(name, on, groups...)
	address := fmt.Sprintf("10.16.0.%d", r.IntN(4))
	rows[0].Elements = podWithAddress(name, on, address, sets...)[0].Elements
	if r.IntN(2) == 0 {
		rows[0].Values = []string{address}
	}
	port := rows[0].Model.(*nb.LogicalSwitchPort)
	port.Addresses = []string{fmt.Sprintf("00:00:00:00:00:%02d", r.IntN(3))}
	if r.IntN(2) == 0 {
		port.Options = map[string]string{"requested-chassis": fmt.Sprint(r.IntN(3))}
	}
	if rate := r.IntN(4); rate > 0 {
		rows = append(rows, limitRow(name, on, rate))
	}
	if r.IntN(3) == 0 { // a second row on another switch
		other := podRows(name+"-net1", fmt.Sprint(r.IntN(3)))[0]
		other.Key = "net1"
		rows = append(rows, other)
	}
	return rows
}

// The database depends only on the current desired state, not on the steps or batches that led to it, and another Apply sends
// nothing.
func TestTheDatabaseDependsOnThePresentStateOnly(t *testing.T) {
	const short = 20 * time.Millisecond // changes are often left for later, and soon written
	seed.Histories(t, nil, 8, func(t *testing.T, seed uint64, r *rand.Rand) {
		server := nbtest.Start(t)
		proxy := server.Proxy()
		e := leadAt(t, proxy.Endpoint(), short)
		last := map[desired.Owner][]desired.Row{}
		apply := func(o desired.Owner, rows []desired.Row) {
			eventually.Wait{For: "an answer for " + o.String(), Pause: 50 * time.Millisecond}.Holds(t, func() bool { // two losses in a row give ErrNoAnswer
				err := e.try(o, rows)
				if err != nil && !errors.Is(err, northbound.ErrWaiting) && !errors.Is(err, northbound.ErrNoAnswer) {
					t.Fatalf("seed %d: %v", seed, err)
				}
				return !errors.Is(err, northbound.ErrNoAnswer)
			})
			last[o] = rows
		}
		base := func() {
			for i := range 3 {
				name := fmt.Sprint(i)
				apply(subnet(name), subnetRows(name))
				apply(node(name), nodeRows(name))
				apply(policy(name), policyRows(name))
			}
		}
		base()
		for range 150 {
			switch name := fmt.Sprint(r.IntN(3)); r.IntN(20) {
			case 0:
				apply(subnet(name), nil)
			case 1:
				apply(node(name), nil)
			case 2:
				apply(policy(name), nil)
			case 3:
				proxy.Fail(1+r.IntN(3), nbtest.ReplyLost)
			case 4:
				proxy.Fail(1+r.IntN(3), nbtest.RequestLost)
			case 5: // another process does not know which sets have the values of which row
				e.stop()
				e = leadAt(t, proxy.Endpoint(), short)
			default:
				p := fmt.Sprint("p", r.IntN(8))
				apply(pod(p), randomPod(r, p))
			}
		}
		base()
		settle := func() {
			for o, rows := range last {
				eventually.Wait{For: "the rows of " + o.String(), Pause: 50 * time.Millisecond}.Holds(t, func() bool { // the owner may have a back-off
					err := e.try(o, rows)
					if err != nil && !errors.Is(err, northbound.ErrNoAnswer) {
						t.Fatalf("seed %d: %v", seed, err)
					}
					return err == nil && !northbound.Busy(e.Engine, o) // nothing is left for later
				})
			}
		}
		settle()
		sent := proxy.Transactions()
		settle()
		if again := proxy.Transactions() - sent; again != 0 {
			t.Errorf("seed %d: %d transactions for an unchanged state", seed, again)
		}
		got := outcome(server)
		e.stop()

		fresh := nbtest.Start(t)
		e = leadAt(t, fresh.Endpoint(), short)
		base()
		settle()
		if diff := cmp.Diff(outcome(fresh), got); diff != "" {
			t.Errorf("seed %d: (-at once +step by step) %s", seed, diff)
		}
		e.stop()
	})
}
