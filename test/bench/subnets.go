// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// network is a subnet in the default VPC or, with own, in a VPC of its own. With a tag it is an underlay subnet with a Vlan of its own.
type network struct {
	subnet, cidr string
	own          bool
	tag          int
}

func (n network) vpc() string {
	if n.own {
		return "vpc-" + n.subnet
	}
	return kubeovnv1.DefaultVpc
}

// objects returns the objects that a user creates for the network, in order.
func (n network) objects() []client.Object {
	subnet := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: n.subnet}}
	subnet.Spec.CIDRBlock = n.cidr
	if n.tag > 0 {
		subnet.Spec.Vlan = n.subnet
		return []client.Object{&kubeovnv1.Vlan{
			ObjectMeta: metav1.ObjectMeta{Name: n.subnet}, Spec: kubeovnv1.VlanSpec{ID: n.tag, Provider: underlayProvider},
		}, subnet}
	}
	if !n.own {
		return []client.Object{subnet}
	}
	subnet.Spec.Vpc = n.vpc()
	return []client.Object{&kubeovnv1.Vpc{
		ObjectMeta: metav1.ObjectMeta{Name: n.vpc()}, Spec: kubeovnv1.VpcSpec{ClusterAccess: kubeovnv1.ClusterAccessServices},
	}, subnet}
}

func subnetNames(networks []network) []string {
	names := make([]string, len(networks))
	for i, n := range networks {
		names[i] = n.subnet
	}
	return names
}

// networkCosts are costs per network or per change.
type networkCosts struct {
	what                                    string
	transactions, rows, writes, allocations float64
	// northd is ovn-northd's CPU time; toSB is the median time from the change until it is in SB, if measured.
	northd, toSB time.Duration
}

// grow creates subnets up to each size of the -subnet-sizes flag, every other one in a VPC of its own. At each size it measures the
// cost of one more and of one less.
func (b *bench) grow(ctx context.Context) error {
	there := 0
	for _, size := range b.options.subnetSizes {
		scenario := fmt.Sprintf("%d subnets, %d nodes", size, b.options.nodes)
		var all []network
		for ; there < size; there++ {
			all = append(all, nthNetwork(there, there%2 == 1))
		}
		if _, err := b.came(ctx, scenario, "at once", all, b.options.parallel); err != nil {
			return err
		}
		b.add(scenario, "at once: all in NB after", "s", span(subnetNames(all), b.loader.createdAt, b.switches.at).Seconds())
		var single []networkCosts
		for _, own := range []bool{false, true} {
			costs, err := b.oneMore(ctx, scenario, own)
			if err != nil {
				return err
			}
			single = append(single, costs...)
		}
		b.addNetworkGrowth(scenario, single)
		if err := b.addMemory(ctx, scenario); err != nil {
			return err
		}
	}
	return nil
}

func nthNetwork(i int, own bool) network {
	return network{subnet: fmt.Sprintf("net-%05d", i), cidr: fmt.Sprintf("10.%d.%d.0/24", 128+i/250, i%250), own: own}
}

// createSubnets creates subnets of the default VPC at once, as the background of another measurement.
func (b *bench) createSubnets(ctx context.Context, n int) error {
	all := make([]network, n)
	for i := range all {
		all[i] = nthNetwork(i, false)
	}
	if n == 0 {
		return nil
	}
	_, err := b.came(ctx, fmt.Sprintf("%d subnets", n), "at once", all, b.options.parallel)
	return err
}

// oneMore creates a few networks, each after the previous one is in NB, and deletes them again.
func (b *bench) oneMore(ctx context.Context, scenario string, own bool) ([]networkCosts, error) {
	what := map[bool]string{false: "one subnet", true: "one VPC and subnet"}[own]
	b.made++
	few := make([]network, b.options.probes)
	for i := range few {
		few[i] = network{subnet: fmt.Sprintf("more-%d-%d", b.made, i), cidr: fmt.Sprintf("10.%d.%d.0/24", 200+b.made%50, i), own: own}
	}
	more, err := b.came(ctx, scenario, what+" more", few, 1)
	if err != nil {
		return nil, err
	}
	committed := took(subnetNames(few), b.loader.createdAt, b.switches.at)
	b.add(scenario, what+" more: created to NB, p50", "ms", milliseconds(percentile(committed, 50)))
	less, err := b.went(ctx, scenario, what+" less", few)
	return []networkCosts{more, less}, err
}

// came creates networks, at most parallel at a time, and waits until they are in NB.
func (b *bench) came(ctx context.Context, scenario, what string, networks []network, parallel int) (networkCosts, error) {
	c, err := b.world.objects()
	if err != nil {
		return networkCosts{}, err
	}
	names := subnetNames(networks)
	return b.costOf(ctx, scenario, what, len(networks), usersOf(networks, "POST "), func() error {
		err := each(ctx, parallel, names, func(ctx context.Context, i int, name string) error {
			b.loader.creates(name)
			for _, o := range networks[i].objects() {
				if err := c.Create(ctx, o); err != nil {
					return fmt.Errorf("create %s: %w", o.GetName(), err)
				}
			}
			if parallel > 1 {
				return nil
			}
			return b.switches.awaitNames(ctx, names[i:i+1], true)
		})
		if err != nil {
			return err
		}
		return b.switches.awaitNames(ctx, names, true)
	})
}

// went deletes networks and waits until they are deleted from NB.
func (b *bench) went(ctx context.Context, scenario, what string, networks []network) (networkCosts, error) {
	c, err := b.world.objects()
	if err != nil {
		return networkCosts{}, err
	}
	return b.costOf(ctx, scenario, what, len(networks), usersOf(networks, "DELETE "), func() error {
		for i, n := range networks {
			for _, o := range slices.Backward(n.objects()) {
				if err := c.Delete(ctx, o); err != nil {
					return fmt.Errorf("delete %s: %w", o.GetName(), err)
				}
			}
			if err := b.switches.awaitNames(ctx, subnetNames(networks[i:i+1]), false); err != nil {
				return err
			}
		}
		return nil
	})
}

// costOf calls do and adds the costs of each of its changes, without the users' own requests. It measures until the system has
// settled and ovn-northd, if it runs, has caught up.
func (b *bench) costOf(ctx context.Context, scenario, what string, times int, users requests, do func() error) (networkCosts, error) {
	before, err := b.state(ctx)
	if err != nil {
		return networkCosts{}, err
	}
	if err := do(); err != nil {
		return networkCosts{}, err
	}
	settled, err := b.world.settle(ctx)
	if err != nil {
		return networkCosts{}, err
	}
	if b.options.northd {
		if err := b.world.northdCaughtUp(ctx); err != nil {
			return networkCosts{}, err
		}
	}
	after, err := b.state(ctx)
	if err != nil {
		return networkCosts{}, err
	}
	n := float64(times)
	inNB := after.nb.minus(before.nb)
	if b.options.northd { // northdCaughtUp itself writes nb_cfg
		inNB = inNB.minus(transactions{CMS: 1, Rows: 1})
	}
	writes := settled.writes.since(before.served.writes).without(users)
	c := networkCosts{what: what, transactions: float64(inNB.CMS) / n, rows: float64(inNB.Rows) / n, writes: float64(writes.total()) / n}
	c.northd = (after.cpu[northd] - before.cpu[northd]) / time.Duration(times)
	b.add(scenario, what+": NB transactions", "", c.transactions)
	b.add(scenario, what+": NB rows written", "", c.rows)
	b.addRequests(scenario, what+": API writes", writes, times)
	b.add(scenario, what+": API lists", "", float64(settled.lists.since(before.served.lists).total()))
	b.add(scenario, what+": controller CPU", "ms", milliseconds(after.cpu[controller]-before.cpu[controller])/n)
	if allocated, ok := after.exported.value("go_memstats_mallocs_total"); ok {
		earlier, _ := before.exported.value("go_memstats_mallocs_total")
		c.allocations = (allocated - earlier) / n
		b.add(scenario, what+": controller allocations", "", c.allocations)
	}
	b.add(scenario, what+": controller receives", "kB", float64(after.read-before.read)/n/1e3)
	b.add(scenario, what+": controller sends", "kB", float64(after.written-before.written)/n/1e3)
	for _, name := range slices.Sorted(maps.Keys(after.cpu)) {
		if spent := after.cpu[name] - before.cpu[name]; name != controller && spent > 0 {
			b.add(scenario, what+": CPU of "+name, "ms", milliseconds(spent)/n)
		}
	}
	return c, nil
}

// usersOf returns the requests of a user: one creation, or one deletion, per object.
func usersOf(networks []network, verb string) requests {
	users := requests{}
	for _, n := range networks {
		for _, o := range n.objects() {
			kind := "subnets"
			switch o.(type) {
			case *kubeovnv1.Vpc:
				kind = "vpcs"
			case *kubeovnv1.Vlan:
				kind = "vlans"
			}
			users[verb+kind]++
		}
	}
	return users
}

// addNetworkGrowth adds the ratios of the costs of a single network to the costs at the first size.
func (b *bench) addNetworkGrowth(scenario string, single []networkCosts) {
	b.networks = append(b.networks, single)
	first := b.networks[0]
	if len(b.networks) == 1 {
		return
	}
	for i, c := range single {
		for _, growth := range []struct {
			what      string
			now, then float64
		}{
			{"NB transactions", c.transactions, first[i].transactions}, {"NB rows written", c.rows, first[i].rows},
			{"API writes", c.writes, first[i].writes}, {"controller allocations", c.allocations, first[i].allocations},
		} {
			b.add(scenario, fmt.Sprintf("%s: %s, against the first size", c.what, growth.what), "×", quotient(growth.now, growth.then))
		}
	}
}
