// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// A change of one endpoint among 1,000 takes the same number of operations with 5,000 other Services as without, and no full
// recompute of northd.
func TestOneEndpointAmongManyServices(t *testing.T) {
	endpoints := make([]string, 1000)
	for i := range endpoints {
		endpoints[i] = fmt.Sprintf("10.16.%d.%d", i/250, i%250+2)
	}
	alone := 0.0
	for _, services := range []int{0, 5000} {
		server := nbtest.Start(t)
		northd := server.Northd()
		e := lead(t, server.Endpoint())
		applyNetwork(e)
		names := podNames(services)
		// Rows of Services; their owners are pods, which does not matter here.
		e.applyAll(names, func(name string) []desired.Row {
			rows := serviceTo("10.16.0.2")
			lb := rows[0].Model.(*nb.LoadBalancer)
			lb.Name = name
			lb.Vips = map[string]string{fmt.Sprintf("10.97.%s:80", strings.Join(digits(name), ".")): "10.16.0.2:8080"}
			return rows
		})
		e.apply(service("web"), serviceTo(endpoints...))
		northd.Await("all Services", func(sb *nbtest.Server) bool { return balances(sb, services+1, endpoints[999], true) })
		northd.Settled()
		before := map[string]int{}
		for _, node := range costly {
			before[node] = northd.Recomputes(node)
		}
		sent := histogram(t, "kiln_northbound_transaction_operations").GetSampleSum()
		e.apply(service("web"), serviceTo(endpoints[:999]...))
		operations := histogram(t, "kiln_northbound_transaction_operations").GetSampleSum() - sent
		northd.Await("the change", func(sb *nbtest.Server) bool { return balances(sb, services+1, endpoints[999], false) })
		northd.Settled()
		for _, node := range costly {
			if n := northd.Recomputes(node); n != before[node] {
				t.Errorf("among %d Services northd computed its %s in full", services, node)
			}
		}
		if services == 0 {
			alone = operations
		}
		if operations != alone || operations > 3 {
			t.Errorf("%v operations among %d Services, %v alone", operations, services, alone)
		}
	}
}

// digits returns two numbers that are unique for the name.
func digits(name string) []string {
	n := 0
	for _, r := range name {
		if r >= '0' && r <= '9' {
			n = n*10 + int(r-'0')
		}
	}
	return []string{fmt.Sprint(n / 250), fmt.Sprint(n % 250)}
}

// balances reports whether there are that many load balancers, and whether the endpoint's presence in one of them is as wanted.
func balances(southbound *nbtest.Server, balancers int, endpoint string, want bool) bool {
	rows := southbound.Rows("Load_Balancer")
	has := false
	for _, row := range rows {
		has = has || strings.Contains(row["vips"].(map[string]string)["10.96.0.80:80"], endpoint+":")
	}
	return len(rows) == balancers && has == want
}
