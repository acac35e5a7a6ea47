// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestARouteReturnsWithAnotherMetricWhereTheKernelMakesIts(t *testing.T) {
	r := Route{Family: 6, Gateway: netip.MustParseAddr("fe80::1"), Protocol: unix.RTPROT_RA, Priority: 1024, Expires: time.Hour}
	for _, c := range []struct {
		accept, metric string
		want           int
	}{
		{"0", "", 1024}, {"1", "", 1025}, {"2", "", 1025}, {"", "", 1024}, {"2", "1024", 1025}, {"2", "1000", 1025}, {"2", "2048", 1024},
	} {
		s := State{Routes: []Route{r}, Settings: map[string]string{acceptRA: c.accept, metricRA: c.metric}}
		if got := s.ofUplink(r).Priority; got != c.want {
			t.Errorf("with accept_ra %q and the kernel's metric %q, the metric is %d; want %d", c.accept, c.metric, got, c.want)
		}
	}
	more := r
	more.Destination = netip.MustParsePrefix("2001:db8:9::/48")
	if got := (State{Settings: map[string]string{acceptRA: "2", metricRA: "2048"}}).ofUplink(more).Priority; got != 1025 {
		t.Errorf("the metric of a route to more networks is %d", got)
	}
}
