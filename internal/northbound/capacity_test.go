// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"errors"
	"testing"
	"time"

	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
)

// The capacity is what ovn-northd reports for the encapsulations of all chassis, and subscribers learn of its changes.
func TestTheCapacityFollowsTheEncapsulationsOfChassis(t *testing.T) {
	db := nbtest.Start(t)
	e := start(t, db.Endpoint())
	changed := make(chan struct{}, 1)
	e.Subscribe(northbound.KindCapacity, func(desired.Owner) {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	becomes := func(want northbound.Capacity) {
		t.Helper()
		for e.Capacity() != want {
			select {
			case <-changed:
			case <-time.After(patience):
				t.Fatalf("the capacity stays %+v, want %+v", e.Capacity(), want)
			}
		}
	}
	geneve := northbound.Capacity{Datapaths: 16711680, Ports: 32767}
	becomes(geneve)
	sb := db.Northd().Southbound
	chassis := func(name, encapsulation string) {
		t.Helper()
		sb.Transact(
			nbtest.Op{"op": "insert", "table": "Encap", "uuid-name": "encap", "row": map[string]any{
				"type": encapsulation, "ip": "192.0.2.1", "chassis_name": name,
			}},
			nbtest.Op{"op": "insert", "table": "Chassis", "row": map[string]any{"name": name, "encaps": []any{"named-uuid", "encap"}}},
		)
	}
	chassis("n1", "geneve")
	chassis("n2", "vxlan")
	becomes(northbound.Capacity{Datapaths: 4095, Ports: 2047})
	sb.Transact(nbtest.Op{"op": "delete", "table": "Chassis", "where": []any{[]any{"name", "==", "n2"}}})
	becomes(geneve)
}

// With VXLAN, switches and routers beyond the capacity wait until another one is deleted.
func TestDatapathsBeyondTheCapacityWait(t *testing.T) {
	db := nbtest.Start(t)
	db.Transact(nbtest.Op{"op": "insert", "table": "NB_Global", "row": map[string]any{"options": nbtest.Map(map[string]string{"max_tunid": "3"})}})
	e := lead(t, db.Endpoint())
	for _, name := range []string{"a", "b", "c"} {
		e.apply(subnet(name), subnetRows(name))
	}
	for range 2 { // a second try is no other datapath
		if err := e.try(subnet("d"), subnetRows("d")); !errors.Is(err, northbound.ErrDatapaths) || !errors.Is(err, northbound.ErrWaiting) {
			t.Fatalf("a fourth datapath: %v", err)
		}
	}
	e.apply(subnet("a"), subnetRows("a")) // an existing one is not new
	e.apply(subnet("b"), nil)
	e.expectCall(subnet("d"))
	e.apply(subnet("d"), subnetRows("d"))
	if names := db.Names("Logical_Switch"); len(names) != 3 {
		t.Errorf("the switches are %v", names)
	}
}

// Requests that arrive during a transaction share the next one.
func TestDatapathsOfOneBatchStayWithinTheCapacity(t *testing.T) {
	db := nbtest.Start(t)
	db.Transact(nbtest.Op{"op": "insert", "table": "NB_Global", "row": map[string]any{"options": nbtest.Map(map[string]string{"max_tunid": "2"})}})
	proxy := db.Proxy()
	e := lead(t, proxy.Endpoint())
	proxy.Hold()
	first := e.queued(policy("p"), policyRows("p"))
	proxy.AwaitHeld()
	var results []<-chan error
	for _, name := range []string{"a", "b", "c"} {
		results = append(results, e.queued(subnet(name), subnetRows(name)))
	}
	proxy.Release()
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	waiting := 0
	for _, result := range results {
		if err := <-result; errors.Is(err, northbound.ErrDatapaths) {
			waiting++
		} else if err != nil {
			t.Error(err)
		}
	}
	if names := db.Names("Logical_Switch"); waiting != 1 || len(names) != 2 {
		t.Errorf("%d of three subnets wait, and the switches are %v, want two", waiting, names)
	}
}
