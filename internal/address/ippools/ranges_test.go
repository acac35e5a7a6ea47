// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ippools

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// TestDivide divides a subnet among the pools a, b and c, of which a is the oldest.
func TestDivide(t *testing.T) {
	subnet := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0/24,fd00::/64"}}
	for _, tt := range []struct {
		name string
		// last and current are ips of the last valid and the current specs, separated by commas; empty for none.
		last, current [3]string
		want          string   // the pools with their addresses
		problems      []string // parts of the problems of a, b and c
	}{
		{"new pools", [3]string{}, [3]string{"10.16.0.2", "10.16.0.3,fd00::3", "10.16.0.4"}, "a 10.16.0.2 b 10.16.0.3 fd00::3 c 10.16.0.4", []string{"", "", ""}},
		{
			"new pools that overlap", [3]string{}, [3]string{"10.16.0.2..10.16.0.4", "10.16.0.4", "10.16.0.5"},
			"a 10.16.0.2-10.16.0.4 c 10.16.0.5", []string{"", "10.16.0.4 overlaps with 10.16.0.2-10.16.0.4 of the older IPPool a", ""},
		},
		{
			"an invalid change", [3]string{"10.16.0.2", "fd00::3", "10.16.0.4"}, [3]string{"10.16.0.2", "fd01::3", "10.16.0.x"},
			"a 10.16.0.2 b fd00::3 c 10.16.0.4", []string{"", "fd01::3 is outside of subnet s", "10.16.0.x"},
		},
		{
			"a change to addresses of a younger pool", [3]string{"10.16.0.2", "10.16.0.3", ""}, [3]string{"10.16.0.2..10.16.0.3", "10.16.0.3", "10.16.0.9"},
			"a 10.16.0.2 b 10.16.0.3 c 10.16.0.9", []string{"10.16.0.2-10.16.0.3 overlaps with 10.16.0.3 of IPPool b", "", ""},
		},
		{
			"addresses that a younger pool gives up", [3]string{"10.16.0.2", "10.16.0.3..10.16.0.4", ""}, [3]string{"10.16.0.2..10.16.0.3", "10.16.0.4", "10.16.0.9"},
			"a 10.16.0.2-10.16.0.3 b 10.16.0.4 c 10.16.0.9", []string{"", "", ""},
		},
		{
			"a new pool with addresses of a pool with an invalid change", [3]string{"", "10.16.0.3", ""}, [3]string{"10.16.0.3", "10.99.0.3", "10.16.0.9"},
			"b 10.16.0.3 c 10.16.0.9", []string{"10.16.0.3 overlaps with 10.16.0.3 of IPPool b", "10.99.0.3 is outside", ""},
		},
		{
			"pools that exchange their addresses", [3]string{"10.16.0.2", "10.16.0.3", ""}, [3]string{"10.16.0.3", "10.16.0.2", "10.16.0.9"},
			"a 10.16.0.2 b 10.16.0.3 c 10.16.0.9", []string{"of IPPool b", "of the older IPPool a", ""},
		},
		{
			"a subnet that no longer has the addresses", [3]string{"10.99.0.2", "10.16.0.3", ""}, [3]string{"10.99.0.2", "10.16.0.3", "10.16.0.9"},
			"b 10.16.0.3 c 10.16.0.9", []string{"10.99.0.2 is outside", "", ""},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var pools []*kubeovnv1.IPPool
			for i, name := range []string{"a", "b", "c"} {
				pool := &kubeovnv1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.IPPoolSpec{Subnet: "s", IPs: strings.Split(tt.current[i], ",")}}
				if tt.last[i] != "" {
					pool.Status.ValidatedSpec = &kubeovnv1.IPPoolSpec{Subnet: "s", IPs: strings.Split(tt.last[i], ",")}
				}
				pools = append(pools, pool)
			}
			valid, problems := Divide(subnet, pools)
			var have []string
			for _, pool := range valid {
				have = append(have, pool.Name, textOf(pool.Ranges))
			}
			if got := strings.Join(have, " "); got != tt.want {
				t.Errorf("the pools are %s, want %s", got, tt.want)
			}
			for i, want := range tt.problems {
				problem := problems[pools[i].Name]
				if want == "" && problem != nil || want != "" && (problem == nil || !strings.Contains(problem.Message, want)) {
					t.Errorf("the problem of %s is %+v, want %q", pools[i].Name, problem, want)
				}
			}
		})
	}
}

func textOf(ranges []ipfamily.Range) string {
	texts := make([]string, len(ranges))
	for i, r := range ranges {
		texts[i] = fmt.Sprint(r)
	}
	return strings.Join(texts, " ")
}
