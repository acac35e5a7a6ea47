// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"testing"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

func TestIPPool(t *testing.T) {
	const dual = "10.16.0.0/24,fd00:10:16::/120"
	for _, tt := range []struct {
		name, cidrs string
		ips         []string
		want        string // the ranges
		message     string
	}{
		{name: "addresses, ranges and networks", cidrs: dual, ips: []string{"10.16.0.9", "10.16.0.20..10.16.0.29", "fd00:10:16::10/124"},
			want: "10.16.0.9,10.16.0.20-10.16.0.29,fd00:10:16::10-fd00:10:16::1f"},
		{name: "a range that ends outside", cidrs: dual, ips: []string{"10.16.0.250..10.16.1.5"}, message: "is outside of subnet s (" + dual + "): change it"},
		{name: "a range that begins outside", cidrs: dual, ips: []string{"10.15.255.250..10.16.0.5"}, message: "is outside of subnet s"},
		{name: "an address of a family that the subnet lacks", cidrs: "10.16.0.0/24", ips: []string{"fd00:10:16::9"}, message: "fd00:10:16::9 is outside of subnet s"},
		{name: "no address", cidrs: dual, ips: []string{"web"}, message: `ips: "web"`},
		{name: "a subnet that cannot be read", cidrs: "10.16.0.0", ips: []string{"10.16.0.9"}, message: "the cidrBlock of subnet s cannot be read"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ranges, p := IPPool(&kubeovnv1.IPPool{Spec: kubeovnv1.IPPoolSpec{Subnet: "s", IPs: tt.ips}}, tt.cidrs)
			reason := ""
			if tt.message != "" {
				reason = ReasonIPsInvalid
			}
			expect(t, p, reason, tt.message)
			if got := ipfamily.Join(ranges); got != tt.want {
				t.Errorf("ranges %s, want %s", got, tt.want)
			}
		})
	}
}
