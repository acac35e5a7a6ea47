// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ippool_test

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// The test checks every count of the status while pods are created and deleted, and while the pool's own addresses change.
func TestThePoolsStatusCountsBothFamilies(t *testing.T) {
	w := newWorld(t)
	pool := w.pool("both", nil, "10.16.0.20..10.16.0.23", "fd00:10:16::20/126")
	w.start()
	counts := func(want kubeovnv1.IPPoolStatus) {
		t.Helper()
		w.Eventually(func() string {
			w.Get(pool)
			got := pool.Status
			if got.Conditions, got.ValidatedSpec = nil, nil; !equality.Semantic.DeepEqual(got, want) {
				return fmt.Sprintf("the status is %+v, want %+v", got, want)
			}
			return ""
		})
	}
	free := kubeovnv1.IPPoolStatus{
		V4AvailableIPs: 4, V4AvailableIPRange: "10.16.0.20-10.16.0.23",
		V6AvailableIPs: 4, V6AvailableIPRange: "fd00:10:16::20-fd00:10:16::23",
	}
	counts(free)
	first, second := w.pod("first", "ip_pool", "both", "ip_address", "10.16.0.21,fd00:10:16::22"), w.pod("second", "ip_pool", "both", "ip_family", "ipv6")
	counts(kubeovnv1.IPPoolStatus{
		V4AvailableIPs: 3, V4AvailableIPRange: "10.16.0.20,10.16.0.22-10.16.0.23", V4UsingIPs: 1, V4UsingIPRange: "10.16.0.21",
		V6AvailableIPs: 2, V6AvailableIPRange: "fd00:10:16::21,fd00:10:16::23", V6UsingIPs: 2, V6UsingIPRange: "fd00:10:16::20,fd00:10:16::22",
	})
	w.Change(pool, func() { pool.Spec.IPs = append(pool.Spec.IPs, "10.16.0.40") })
	w.Delete(first)
	w.Delete(second)
	free.V4AvailableIPs, free.V4AvailableIPRange = 5, free.V4AvailableIPRange+",10.16.0.40"
	counts(free)
}
