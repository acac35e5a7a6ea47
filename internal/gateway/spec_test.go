// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kiln-net/kiln/api/v1"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"":                                      "[]",
		"a":                                     "[{a []}]",
		" b , a ":                               "[{b []} {a []}]",
		"a:192.0.2.1, b":                        "[{a [192.0.2.1]} {b []}]",
		"a:192.0.2.1,a:2001:db8::1,b:192.0.2.2": "[{a [192.0.2.1 2001:db8::1]} {b [192.0.2.2]}]",
		"a:192.0.2.1,a:192.0.2.2":               "two egress addresses of one family",
		"a:192.0.2":                             "is not an IP address",
		":192.0.2.1":                            "names no node",
		"kube-ovn-worker:172.18.0.2, kube-ovn-w2": "[{kube-ovn-worker [172.18.0.2]} {kube-ovn-w2 []}]",
	} {
		got, err := Parse(&v1.SubnetSpec{GatewayNode: text})
		if s := fmt.Sprint(got.Nodes); err == nil && s != want || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %s, %v, want %s", text, s, err, want)
		}
	}
}

func TestIncludes(t *testing.T) {
	selectors := []metav1.LabelSelector{{MatchLabels: map[string]string{"edge": "yes"}}}
	edge := map[string]string{"edge": "yes"}
	for name, c := range map[string]struct {
		spec   v1.SubnetSpec
		node   string
		labels map[string]string
		want   bool
	}{
		"by name":                       {v1.SubnetSpec{GatewayNode: "a,b:192.0.2.1"}, "b", nil, true},
		"not by name":                   {v1.SubnetSpec{GatewayNode: "a"}, "b", edge, false},
		"by label":                      {v1.SubnetSpec{GatewayNodeSelectors: selectors}, "b", edge, true},
		"not by label":                  {v1.SubnetSpec{GatewayNodeSelectors: selectors}, "b", nil, false},
		"by label where names are, too": {v1.SubnetSpec{GatewayNode: "a", GatewayNodeSelectors: selectors}, "b", edge, false},
		"by nothing":                    {v1.SubnetSpec{}, "b", edge, false},
	} {
		spec, err := Parse(&c.spec)
		if got := spec.Includes(c.node, c.labels); got != c.want || err != nil {
			t.Errorf("%s: got %v, %v", name, got, err)
		}
	}
}

func TestTableConflict(t *testing.T) {
	subnet := func(name string, age time.Duration, change func(*v1.SubnetSpec)) *v1.Subnet {
		s := &v1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(1000, 0).Add(-age))}}
		s.Spec = v1.SubnetSpec{ExternalEgressGateway: "192.0.2.1", PolicyRoutingPriority: 1, PolicyRoutingTableID: 7}
		if change != nil {
			change(&s.Spec)
		}
		return s
	}
	this := subnet("b", time.Minute, nil)
	for name, c := range map[string]struct {
		other    *v1.Subnet
		conflict bool
	}{
		"itself":          {this, false},
		"an older one":    {subnet("z", time.Hour, nil), true},
		"a younger one":   {subnet("a", time.Second, nil), false},
		"one as old":      {subnet("a", time.Minute, nil), true},
		"another table":   {subnet("z", time.Hour, func(s *v1.SubnetSpec) { s.PolicyRoutingTableID = 8 }), false},
		"another VPC":     {subnet("z", time.Hour, func(s *v1.SubnetSpec) { s.Vpc = "v" }), false},
		"no gateway":      {subnet("z", time.Hour, func(s *v1.SubnetSpec) { s.ExternalEgressGateway = "" }), false},
		"a wrong gateway": {subnet("z", time.Hour, func(s *v1.SubnetSpec) { s.NATOutgoing = true }), false},
	} {
		if got := TableConflict(this, []*v1.Subnet{c.other}); (got != nil) != c.conflict {
			t.Errorf("%s: got %v", name, got)
		}
	}
}
