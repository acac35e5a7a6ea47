// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cniserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kiln-net/kiln/agent/ovs"
	"github.com/kiln-net/kiln/agent/sandbox"
	v1 "github.com/kiln-net/kiln/api/v1"
)

func TestLimitsAreCounted(t *testing.T) {
	var ports []ovs.LimitedPort
	shaped := map[string]sandbox.Shaping{}
	c := &limitCounter{
		node:    "n1",
		limited: func(context.Context) ([]ovs.LimitedPort, error) { return ports, nil },
		shaped:  func() (map[string]sandbox.Shaping, error) { return shaped, nil },
	}
	says := func(want ...string) {
		t.Helper()
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(c)
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, family := range families {
			for _, m := range family.GetMetric() {
				var labels []string
				for _, l := range m.GetLabel() {
					if l.GetName() != "node_name" {
						labels = append(labels, l.GetValue())
					}
				}
				if value := m.GetCounter().GetValue() + m.GetGauge().GetValue(); value > 0 {
					got = append(got, fmt.Sprint(strings.TrimPrefix(family.GetName(), "kiln_"), " ", strings.Join(labels, " "), " ", value))
				}
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("metrics\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	says()
	port := func(name string, qdisc string, policed bool) {
		ports = append(ports, ovs.LimitedPort{Attachment: ovs.Attachment{Name: name + "_h", PodNamespace: "shop", PodName: name}, Qdisc: qdisc, Policed: policed})
	}
	port("a", "htb", true)
	shaped["a_h"] = sandbox.Shaping{Qdisc: "htb", ToDropped: 5, ToDelayed: 7, FromDropped: 2}
	says("limit_delayed_packets_total ingress 7", "limit_dropped_packets_total egress 2", "limit_dropped_packets_total ingress 5",
		"limit_top_dropped_packets_total egress a shop 2", "limit_top_dropped_packets_total ingress a shop 5", "limited_ports egress 1", "limited_ports ingress 1")
	shaped["a_h"] = sandbox.Shaping{Qdisc: "htb", ToDropped: 1, ToDelayed: 8, FromDropped: 2} // another limit
	says("limit_delayed_packets_total ingress 8", "limit_dropped_packets_total egress 2", "limit_dropped_packets_total ingress 6",
		"limit_top_dropped_packets_total egress a shop 2", "limit_top_dropped_packets_total ingress a shop 1", "limited_ports egress 1", "limited_ports ingress 1")
	ports = nil
	says("limit_delayed_packets_total ingress 8", "limit_dropped_packets_total egress 2", "limit_dropped_packets_total ingress 6")
	for i := range 20 {
		name := fmt.Sprintf("p%02d", i)
		port(name, "htb", false)
		shaped[name+"_h"] = sandbox.Shaping{Qdisc: "htb", ToDropped: uint32(i)}
	}
	says("limit_delayed_packets_total ingress 8", "limit_dropped_packets_total egress 2", "limit_dropped_packets_total ingress 196",
		"limit_top_dropped_packets_total ingress p15 shop 15", "limit_top_dropped_packets_total ingress p16 shop 16", "limit_top_dropped_packets_total ingress p17 shop 17",
		"limit_top_dropped_packets_total ingress p18 shop 18", "limit_top_dropped_packets_total ingress p19 shop 19", "limited_ports ingress 20")
	shaped["p03_h"] = sandbox.Shaping{Qdisc: "htb", ToDropped: 4}  // the only present drops
	shaped["p19_h"] = sandbox.Shaping{Qdisc: "htb", ToDropped: 19} // none
	says("limit_delayed_packets_total ingress 8", "limit_dropped_packets_total egress 2", "limit_dropped_packets_total ingress 197",
		"limit_top_dropped_packets_total ingress p03 shop 4", "limit_top_dropped_packets_total ingress p16 shop 16", "limit_top_dropped_packets_total ingress p17 shop 17",
		"limit_top_dropped_packets_total ingress p18 shop 18", "limit_top_dropped_packets_total ingress p19 shop 19", "limited_ports ingress 20")
	c.limited = func(context.Context) ([]ovs.LimitedPort, error) { return nil, errors.New("disconnected") }
	says()
}

// TestALimitIsReportedWhenItIsMissingTwice: one comparison may be between the transaction and its effect in the kernel.
func TestALimitIsReportedWhenItIsMissingTwice(t *testing.T) {
	var u unenforced
	for i, step := range []struct{ missing, want []string }{
		{[]string{"a htb"}, nil}, {[]string{"a htb", "b policing"}, []string{"a htb"}}, {[]string{"a htb", "b policing"}, []string{"b policing"}},
		{nil, nil}, {[]string{"a htb"}, nil}, {[]string{"a htb"}, []string{"a htb"}},
	} {
		if got := u.missing(step.missing); !slices.Equal(got, step.want) {
			t.Errorf("step %d: %q, want %q", i, got, step.want)
		}
	}
}

// TestSubnetsOfAPod has the subnets of the pod's allocated networks: users may write further annotations.
func TestSubnetsOfAPod(t *testing.T) {
	pod := PodMetadata()
	pod.UID, pod.Annotations = "u1", map[string]string{}
	network := func(provider, subnet, uid, allocated string) {
		pod.Annotations[v1.AnnotationLogicalSwitch.For(provider)] = subnet
		pod.Annotations[v1.AnnotationPodUID.For(provider)] = uid
		pod.Annotations[v1.AnnotationAllocated.For(provider)] = allocated
	}
	network("ovn", "s1", "u1", "true")
	network("second.ns", "s2", "u1", "true")
	network("third.ns", "s1", "u1", "true")
	network("empty.ns", "", "u1", "true")
	network("earlier.ns", "s4", "u0", "true")
	network("waits.ns", "s5", "u1", "")
	for i := range 100_000 { // a quadratic function needs minutes
		pod.Annotations[v1.AnnotationLogicalSwitch.For(fmt.Sprint("forged", i))] = fmt.Sprint("s", i+10)
	}
	if got := subnetsOf(pod); !slices.Equal(slices.Sorted(slices.Values(got)), []string{"s1", "s2"}) {
		t.Errorf("%d subnets, want s1 and s2", len(got))
	}
}
