// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"strings"
	"testing"
	"time"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
)

const mega = 1_000_000

func burst(bits uint64) kubeovnv1.Burst { return kubeovnv1.Burst{Bits: bits, Set: true} }

func TestEffective(t *testing.T) {
	for name, test := range map[string]struct {
		request   kubeovnv1.LimitRequest
		admin     *kubeovnv1.PodLimits
		userspace bool
		want      Port
		adjusted  []string // a part of each message
	}{
		"nothing": {},
		"a rate has a burst of half a second": {
			request: kubeovnv1.LimitRequest{IngressRate: 10 * mega, EgressRate: 20 * mega},
			want:    Port{Ingress: Rate{10 * mega, 5 * mega}, Egress: Rate{20 * mega, 10 * mega}},
		},
		"a low rate has a burst of a packet": {
			request: kubeovnv1.LimitRequest{IngressRate: 100_000},
			want:    Port{Ingress: Rate{100_000, minBurst}},
		},
		"a rate that would block is raised": {
			request:  kubeovnv1.LimitRequest{EgressRate: 1},
			want:     Port{Egress: Rate{10_000, minBurst}},
			adjusted: []string{"egress rate 1bit/s is raised to 10kbit/s"},
		},
		"a small burst is raised": {
			request:  kubeovnv1.LimitRequest{IngressRate: 10 * mega, IngressBurst: burst(0), EgressRate: 10 * mega, EgressBurst: burst(4 * mega)},
			want:     Port{Ingress: Rate{10 * mega, 5 * mega}, Egress: Rate{10 * mega, 5 * mega}},
			adjusted: []string{"ingress burst 0 bit is raised to 5M bit", "egress burst 4M bit is raised to 5M bit"},
		},
		"a larger burst is kept": {
			request: kubeovnv1.LimitRequest{IngressRate: 10 * mega, IngressBurst: burst(30 * mega)},
			want:    Port{Ingress: Rate{10 * mega, 30 * mega}},
		},
		"a burst without a rate": {request: kubeovnv1.LimitRequest{IngressBurst: burst(30 * mega)}},
		"a huge burst is lowered": {
			request:  kubeovnv1.LimitRequest{IngressRate: 1 * mega, IngressBurst: burst(kubeovnv1.MaxBits), EgressRate: kubeovnv1.MaxBits, EgressBurst: burst(kubeovnv1.MaxBits)},
			want:     Port{Ingress: Rate{1 * mega, 60 * mega}, Egress: Rate{kubeovnv1.MaxBits, maxBurst}},
			adjusted: []string{"ingress burst 1T bit is lowered to 60M bit", "egress burst 1T bit is lowered to 32G bit"},
		},
		"administrators limit what no pod requests": {
			admin: &kubeovnv1.PodLimits{IngressRate: "10M", EgressRate: "1M", EgressBurst: "5M"},
			want:  Port{Ingress: Rate{10 * mega, 5 * mega}, Egress: Rate{1 * mega, 5 * mega}},
		},
		"a higher rate is lowered": {
			request:  kubeovnv1.LimitRequest{IngressRate: 100 * mega, EgressRate: 5 * mega},
			admin:    &kubeovnv1.PodLimits{IngressRate: "10M", EgressRate: "10M"},
			want:     Port{Ingress: Rate{10 * mega, 5 * mega}, Egress: Rate{5 * mega, 2_500_000}},
			adjusted: []string{"ingress rate 100Mbit/s is lowered to 10Mbit/s"},
		},
		"a burst does not evade the limit of administrators": {
			request:  kubeovnv1.LimitRequest{IngressRate: 5 * mega, IngressBurst: burst(300 * mega), EgressBurst: burst(300 * mega)},
			admin:    &kubeovnv1.PodLimits{IngressRate: "10M", EgressRate: "10M", EgressBurst: "20M"},
			want:     Port{Ingress: Rate{5 * mega, 5 * mega}, Egress: Rate{10 * mega, 20 * mega}},
			adjusted: []string{"ingress burst 300M bit is lowered to 5M bit", "egress burst 300M bit is lowered to 20M bit"},
		},
		"a limit of administrators that cannot be parsed": {
			request: kubeovnv1.LimitRequest{IngressRate: 10 * mega},
			admin:   &kubeovnv1.PodLimits{IngressRate: "fast", EgressRate: "1", IngressBurst: "-1"},
			want:    Port{Ingress: Rate{10 * mega, 5 * mega}},
		},
		"delays": {
			request: kubeovnv1.LimitRequest{Latency: 20 * time.Millisecond, Jitter: 2 * time.Millisecond, Limit: 500, Loss: 50_000, EgressRate: 10 * mega},
			want:    Port{Egress: Rate{10 * mega, 5 * mega}, Netem: Netem{20 * time.Millisecond, 2 * time.Millisecond, 500, 5}},
		},
		"a fraction of a percent": {
			request:  kubeovnv1.LimitRequest{Loss: 1000},
			want:     Port{Netem: Netem{Loss: 1}},
			adjusted: []string{"loss 0.1 is applied as 1"},
		},
		"more jitter than latency": {
			request:  kubeovnv1.LimitRequest{Latency: time.Millisecond, Jitter: 2 * time.Millisecond},
			want:     Port{Netem: Netem{Latency: time.Millisecond, Jitter: time.Millisecond}},
			adjusted: []string{"jitter 2ms is applied as 1ms"},
		},
		"a rate takes precedence over delays": {
			request:  kubeovnv1.LimitRequest{Latency: time.Millisecond, IngressRate: 10 * mega, Loss: 1},
			want:     Port{Ingress: Rate{10 * mega, 5 * mega}},
			adjusted: []string{"the rate of 10Mbit/s to the pod takes precedence over them. Remove one of the two"},
		},
		"a rate of administrators takes precedence over delays": {
			request:  kubeovnv1.LimitRequest{Latency: time.Millisecond},
			admin:    &kubeovnv1.PodLimits{IngressRate: "10M"},
			want:     Port{Ingress: Rate{10 * mega, 5 * mega}},
			adjusted: []string{"the limit of 10Mbit/s of administrators (podLimits of the Subnet or of the OVNCluster) takes precedence over them. Remove the four annotations"},
		},
		"delays in the userspace datapath": {
			request:   kubeovnv1.LimitRequest{Latency: time.Millisecond, EgressRate: 10 * mega},
			userspace: true,
			want:      Port{Egress: Rate{10 * mega, 5 * mega}},
			adjusted:  []string{"the userspace datapath"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, adjusted := Effective(test.request, test.admin, test.userspace)
			if got != test.want {
				t.Errorf("limits %+v, want %+v", got, test.want)
			}
			if len(adjusted) != len(test.adjusted) {
				t.Fatalf("adjusted %q, want %q", adjusted, test.adjusted)
			}
			for i, part := range test.adjusted {
				if !strings.Contains(adjusted[i], part) {
					t.Errorf("adjusted %q, want %q", adjusted[i], part)
				}
			}
		})
	}
}

// TestEffectiveIsBounded: no request exceeds the limit of administrators, nor what the kernel counts.
func TestEffectiveIsBounded(t *testing.T) {
	values := []uint64{0, 1, 9_999, 10_000, 999_999, mega, 1_000 * mega, kubeovnv1.MaxBits}
	for _, limit := range []kubeovnv1.Bits{"", "10k", "3M", "1T"} {
		for _, rate := range values {
			for _, b := range values {
				admin := &kubeovnv1.PodLimits{EgressRate: limit}
				got, _ := Effective(kubeovnv1.LimitRequest{EgressRate: rate, EgressBurst: burst(b)}, admin, true)
				highest, _ := limit.Parse()
				switch e := got.Egress; {
				case rate == 0 && highest == 0:
					if e != (Rate{}) {
						t.Errorf("a limit %+v without a request", e)
					}
				case e.Bits < kubeovnv1.MinBits, highest > 0 && e.Bits > highest, e.Burst < min(e.Bits/2, maxBurst), e.Burst < minBurst, e.Burst > maxBurst, e.Burst > e.Bits*maxBurstSeconds:
					t.Errorf("rate %d and burst %d within %q: %+v", rate, b, limit, e)
				}
			}
		}
	}
}

func TestMerge(t *testing.T) {
	cluster := &kubeovnv1.PodLimits{IngressRate: "10M", IngressBurst: "20M", EgressRate: "1M"}
	for name, test := range map[string]struct{ subnet, cluster, want *kubeovnv1.PodLimits }{
		"none":                      {},
		"empty":                     {subnet: &kubeovnv1.PodLimits{}, cluster: &kubeovnv1.PodLimits{IngressBurst: "1M"}},
		"of the cluster":            {cluster: cluster, want: cluster},
		"of the subnet":             {subnet: cluster, want: cluster},
		"a direction of the subnet": {subnet: &kubeovnv1.PodLimits{IngressRate: "1G"}, cluster: cluster, want: &kubeovnv1.PodLimits{IngressRate: "1G", EgressRate: "1M"}},
	} {
		got := Merge(test.subnet, test.cluster)
		if (got == nil) != (test.want == nil) || got != nil && *got != *test.want {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
	}
}

func TestCluster(t *testing.T) {
	var none *Cluster
	if none.Limits() != nil || none.Userspace() {
		t.Error("a missing OVNCluster has limits")
	}
	c := &Cluster{}
	spec := &v1alpha1.OVNClusterSpec{}
	spec.Nodes.Datapath = v1alpha1.DatapathUserspace
	spec.Tenancy.PodLimits = &kubeovnv1.PodLimits{EgressRate: "1M"}
	c.Set(spec)
	spec.Tenancy.PodLimits.EgressRate = "2M"
	if got := c.Limits(); got.EgressRate != "1M" || !c.Userspace() {
		t.Errorf("limits %+v, userspace %v", got, c.Userspace())
	}
	c.Set(spec)
	if got := c.Limits(); got.EgressRate != "2M" {
		t.Errorf("a changed limit is %+v", got)
	}
	c.Set(&v1alpha1.OVNClusterSpec{})
	if c.Limits() != nil || c.Userspace() {
		t.Errorf("a removed limit is %+v", c.Limits())
	}
}
