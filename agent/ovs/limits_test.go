// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/kiln-net/kiln/internal/limits"
	"github.com/kiln-net/kiln/internal/ovsdb/vswitch"
	"github.com/kiln-net/kiln/internal/testing/must"
)

const mega = 1_000_000

var (
	bothRates = limits.Port{Ingress: limits.Rate{Bits: 10 * mega, Burst: 5 * mega}, Egress: limits.Rate{Bits: 2 * mega, Burst: 1 * mega}}
	delayed   = limits.Port{Netem: limits.Netem{Latency: 20 * time.Millisecond, Jitter: time.Millisecond, Packets: 100, Loss: 5}}
)

// limitsOf returns the rows of limits as text: of the port and its interface, and all QoS and Queue rows.
func (b *Bridge) limitsOf(t *testing.T, name string) (port string, rows []string) {
	t.Helper()
	var qos []vswitch.QoS
	var queues []vswitch.Queue
	must.Succeed(t, b.client.List(t.Context(), &qos))
	must.Succeed(t, b.client.List(t.Context(), &queues))
	names := map[string]string{}
	for _, q := range queues {
		names[q.UUID] = "queue " + config(q.OtherConfig) + " of " + q.ExternalIDs["pod"] + " " + q.ExternalIDs["iface-id"]
		rows = append(rows, names[q.UUID])
	}
	for _, q := range qos {
		names[q.UUID] = q.Type + " " + config(q.OtherConfig)
		for _, queue := range q.Queues {
			names[q.UUID] += " with " + names[queue]
		}
		rows = append(rows, names[q.UUID])
	}
	slices.Sort(rows)
	iface, p := &vswitch.Interface{Name: name}, &vswitch.Port{Name: name}
	if err := b.client.Get(t.Context(), iface); isNotFound(err) {
		return "missing", rows
	}
	if err := b.client.Get(t.Context(), p); isNotFound(err) {
		return "missing", rows
	}
	if p.QOS != nil {
		port = names[*p.QOS] + "; "
	}
	return port + fmt.Sprintf("policing %d %d", iface.IngressPolicingRate, iface.IngressPolicingBurst), rows
}

func config(values map[string]string) string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(values)) {
		parts = append(parts, key+"="+values[key])
	}
	return strings.Join(parts, ",")
}

func (b *Bridge) setDatapath(t *testing.T, kind string) {
	t.Helper()
	row := &vswitch.Bridge{Name: IntegrationBridge}
	must.Succeed(t, b.client.Get(t.Context(), row))
	row.DatapathType = kind
	operations, err := b.client.Where(row).Update(row, &row.DatapathType)
	must.Succeed(t, err)
	_, err = b.client.Transact(t.Context(), operations...)
	must.Succeed(t, err)
}

const (
	queueOf10M = "queue burst=5000000,max-rate=10000000,min-rate=10000000 of shop/web web.shop"
	shapedTo10 = "linux-htb max-rate=10000000 with " + queueOf10M
	netemText  = "linux-netem jitter=1000,latency=20000,limit=100,loss=5"
)

func TestLimitsOfAPort(t *testing.T) {
	for name, test := range map[string]struct {
		userspace bool
		steps     []limits.Port
		port      string
		rows      []string
	}{
		"none":                      {steps: []limits.Port{{}}, port: "policing 0 0"},
		"both rates":                {steps: []limits.Port{bothRates}, port: shapedTo10 + "; policing 2000 1000", rows: []string{shapedTo10, queueOf10M}},
		"in the userspace datapath": {userspace: true, steps: []limits.Port{bothRates}, port: "policing 0 0"},
		"delays":                    {steps: []limits.Port{delayed}, port: netemText + "; policing 0 0", rows: []string{netemText}},
		"a rate of bits is rounded up": {
			steps: []limits.Port{{Egress: limits.Rate{Bits: 10_001, Burst: 524_288}}}, port: "policing 11 525",
		},
		"removed":                {steps: []limits.Port{bothRates, {}}, port: "policing 0 0"},
		"changed":                {steps: []limits.Port{{Ingress: limits.Rate{Bits: mega, Burst: mega}}, bothRates}, port: shapedTo10 + "; policing 2000 1000", rows: []string{shapedTo10, queueOf10M}},
		"delays after a rate":    {steps: []limits.Port{bothRates, delayed}, port: netemText + "; policing 0 0", rows: []string{netemText}},
		"a rate after delays":    {steps: []limits.Port{delayed, bothRates}, port: shapedTo10 + "; policing 2000 1000", rows: []string{shapedTo10, queueOf10M}},
		"delays are removed":     {steps: []limits.Port{delayed, {}}, port: "policing 0 0"},
		"removed, and set again": {steps: []limits.Port{bothRates, {}, bothRates}, port: shapedTo10 + "; policing 2000 1000", rows: []string{shapedTo10, queueOf10M}},
	} {
		for _, atADD := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, at ADD %v", name, atADD), func(t *testing.T) {
				b := newBridge(t)
				if test.userspace {
					b.setDatapath(t, "netdev")
				}
				a := testAttachment()
				if !atADD {
					must.Succeed(t, b.Attach(t.Context(), a))
				}
				for i, step := range test.steps {
					before := sentSoFar(t)
					if a.Limits = &step; atADD {
						must.Succeed(t, b.Attach(t.Context(), a))
					} else {
						must.Succeed(t, b.Limit(t.Context(), a.Name, step))
					}
					if sent := sentSoFar(t) - before; sent > 1 {
						t.Errorf("step %d needed %d transactions", i, sent)
					}
					before = sentSoFar(t)
					limited, err := b.Limited(t.Context(), a.Name, step)
					must.Succeed(t, err)
					must.Succeed(t, b.Limit(t.Context(), a.Name, step))
					if sent := sentSoFar(t) - before; !limited || sent != 0 {
						t.Errorf("step %d: limited %v, and %d transactions for no change", i, limited, sent)
					}
				}
				a.Limits = nil
				a.Gateways = nil // a change of the record leaves the limits
				must.Succeed(t, b.Attach(t.Context(), a))
				if port, rows := b.limitsOf(t, a.Name); port != test.port || !slices.Equal(rows, test.rows) {
					t.Errorf("port %q and rows\n%s\nwant %q and\n%s", port, strings.Join(rows, "\n"), test.port, strings.Join(test.rows, "\n"))
				}
				if limited, err := b.Limited(t.Context(), a.Name, limits.Port{Ingress: limits.Rate{Bits: 7, Burst: 7}}); limited != test.userspace || err != nil {
					t.Errorf("limited otherwise: %v %v", limited, err)
				}
				must.Succeed(t, b.Detach(t.Context(), a.Name))
				if port, rows := b.limitsOf(t, a.Name); port != "missing" || len(rows) > 0 {
					t.Errorf("after its end: %q %q", port, rows)
				}
			})
		}
	}
}

// TestLimitsOfAnEarlierVersionAreRemovedInTheUserspaceDatapath: it limited the traffic to pods by a qdisc there as well.
func TestLimitsOfAnEarlierVersionAreRemovedInTheUserspaceDatapath(t *testing.T) {
	b := newBridge(t)
	a := testAttachment()
	a.Limits = &bothRates
	must.Succeed(t, b.Attach(t.Context(), a))
	b.setDatapath(t, "netdev")
	if limited, err := b.Limited(t.Context(), a.Name, bothRates); limited || err != nil {
		t.Errorf("limited %v %v", limited, err)
	}
	must.Succeed(t, b.Limit(t.Context(), a.Name, bothRates))
	if port, rows := b.limitsOf(t, a.Name); port != "policing 0 0" || len(rows) > 0 {
		t.Errorf("port %q and rows %q", port, rows)
	}
}

// TestAPortIsRestoredWithItsLimits in the same transaction, whether the rows of the removed port remain or not.
func TestAPortIsRestoredWithItsLimits(t *testing.T) {
	b := newBridge(t)
	a := testAttachment()
	a.Limits = &bothRates
	for _, left := range []bool{false, true} {
		if left {
			b.removePort(t, a.Name)
		}
		before := sentSoFar(t)
		restored, err := b.Restore(t.Context(), a)
		if sent := sentSoFar(t) - before; !restored || err != nil || sent != 1 {
			t.Errorf("restored %v, %v, by %d transactions", restored, err, sent)
		}
		if port, rows := b.limitsOf(t, a.Name); port != shapedTo10+"; policing 2000 1000" || len(rows) != 2 {
			t.Errorf("port %q and rows %q", port, rows)
		}
	}
}

func TestLimitsOfTwoPortsAreApart(t *testing.T) {
	b := newBridge(t)
	first, second := testAttachment(), testAttachment()
	second.Name, second.LogicalPort, second.PodName, second.ContainerID = "second_h", "db.shop", "db", "c2"
	first.Limits, second.Limits = &bothRates, &bothRates
	errs, _ := b.together(t, func(ctx context.Context) error { return b.Attach(ctx, first) }, func(ctx context.Context) error { return b.Attach(ctx, second) })
	must.Succeed(t, errs[0])
	must.Succeed(t, errs[1])
	must.Succeed(t, b.Limit(t.Context(), first.Name, limits.Port{}))
	want := strings.ReplaceAll(shapedTo10, "shop/web web.shop", "shop/db db.shop")
	if port, rows := b.limitsOf(t, second.Name); port != want+"; policing 2000 1000" || len(rows) != 2 {
		t.Errorf("%q %q", port, rows)
	}
}

// TestALaterContainerGetsItsOwnLimits: the port of the previous container of the same pod is removed together with its limits.
func TestALaterContainerGetsItsOwnLimits(t *testing.T) {
	b := newBridge(t)
	a := testAttachment()
	a.Limits = &bothRates
	must.Succeed(t, b.Attach(t.Context(), a))
	later := a
	later.Name, later.ContainerID = "later_h", "c2"
	must.Succeed(t, b.Attach(t.Context(), later))
	if port, rows := b.limitsOf(t, later.Name); port != shapedTo10+"; policing 2000 1000" || len(rows) != 2 {
		t.Errorf("%q %q", port, rows)
	}
	if port, _ := b.limitsOf(t, a.Name); port != "missing" {
		t.Errorf("the earlier port is %q", port)
	}
}

// TestLimitsOfRemovedPortsAreSwept: another program removes a port, and ovsdb-server keeps its QoS. Rows of other programs stay.
func TestLimitsOfRemovedPortsAreSwept(t *testing.T) {
	b := newBridge(t)
	a, kept := testAttachment(), testAttachment()
	kept.Name, kept.LogicalPort, kept.ContainerID = "kept_h", "kept.shop", "c2"
	a.Limits, kept.Limits = &bothRates, &bothRates
	must.Succeed(t, b.Attach(t.Context(), a))
	must.Succeed(t, b.Attach(t.Context(), kept))
	b.write(t, &vswitch.QoS{Type: "linux-htb", ExternalIDs: map[string]string{"of": "another"}, Queues: map[int]string{0: "other"}},
		&vswitch.Queue{UUID: "other", OtherConfig: map[string]string{"max-rate": "1"}})
	before := sentSoFar(t)
	must.Succeed(t, b.SweepLimits(t.Context()))
	if sent := sentSoFar(t) - before; sent != 0 {
		t.Errorf("%d transactions while all rows are used", sent)
	}
	b.removePort(t, a.Name)
	if _, rows := b.limitsOf(t, a.Name); len(rows) != 6 {
		t.Fatalf("before the sweep: %q", rows)
	}
	must.Succeed(t, b.SweepLimits(t.Context()))
	if port, rows := b.limitsOf(t, kept.Name); len(rows) != 4 || !strings.HasPrefix(port, "linux-htb max-rate=10000000 with queue") {
		t.Errorf("after the sweep: %q %q", port, rows)
	}
}

// TestAQoSOfAnotherProgramStays unless the pod has a limit.
func TestAQoSOfAnotherProgramStays(t *testing.T) {
	b := newBridge(t)
	a := testAttachment()
	must.Succeed(t, b.Attach(t.Context(), a))
	b.write(t, &vswitch.QoS{UUID: "theirs", Type: "linux-sfq"})
	var qos []vswitch.QoS
	must.Succeed(t, b.client.List(t.Context(), &qos))
	port := &vswitch.Port{Name: a.Name}
	must.Succeed(t, b.client.Get(t.Context(), port))
	port.QOS = &qos[0].UUID
	operations, err := b.client.Where(port).Update(port, &port.QOS)
	must.Succeed(t, err)
	_, err = b.client.Transact(t.Context(), operations...)
	must.Succeed(t, err)
	must.Succeed(t, b.Limit(t.Context(), a.Name, limits.Port{}))
	if port, _ := b.limitsOf(t, a.Name); port != "linux-sfq ; policing 0 0" {
		t.Errorf("without a limit: %q", port)
	}
	must.Succeed(t, b.Limit(t.Context(), a.Name, bothRates))
	if port, _ := b.limitsOf(t, a.Name); port != shapedTo10+"; policing 2000 1000" {
		t.Errorf("with a limit: %q", port)
	}
}

func TestNoLimitsForPortsOfOthers(t *testing.T) {
	b := newBridge(t)
	for _, name := range []string{"missing", "bond1"} {
		limited, err := b.Limited(t.Context(), name, bothRates)
		if err := b.Limit(t.Context(), name, bothRates); err != nil {
			t.Error(err)
		}
		if _, rows := b.limitsOf(t, name); !limited || err != nil || len(rows) > 0 {
			t.Errorf("%s: %v %v %q", name, limited, err, rows)
		}
	}
}

// removePort removes a port as another program does.
func (b *Bridge) removePort(t *testing.T, name string) {
	t.Helper()
	bridge, port := &vswitch.Bridge{Name: IntegrationBridge}, &vswitch.Port{Name: name}
	must.Succeed(t, b.client.Get(t.Context(), bridge))
	must.Succeed(t, b.client.Get(t.Context(), port))
	operations, err := b.client.Where(bridge).Mutate(bridge, model.Mutation{Field: &bridge.Ports, Mutator: ovsdb.MutateOperationDelete, Value: []string{port.UUID}})
	must.Succeed(t, err)
	_, err = b.client.Transact(t.Context(), operations...)
	must.Succeed(t, err)
}
