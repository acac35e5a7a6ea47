// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"maps"
	"strings"
	"testing"
	"time"
)

func TestParseMegabits(t *testing.T) {
	for text, want := range map[string]uint64{
		"0": 0, "0.0": 0, "1": 1_000_000, "1.5": 1_500_000, "0.01": 10_000, "0.000001": 1, "007": 7_000_000, "1000000": MaxBits, "1000000.000000": MaxBits,
	} {
		if got, err := ParseMegabits(text); err != nil || got != want {
			t.Errorf("%q: %d %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", "-1", "+1", "1e3", "1E3", "0x10", "NaN", "Inf", "inf", "1_000", "1,5", ".5", "5.", ".", "1.2.3", "1.0000001", "1000000.000001", "1000001", "10M", "1 000",
		"٣", "99999999999999999999999999", "0.00000000000000000000001", strings.Repeat("9", 1<<16),
	} {
		if got, err := ParseMegabits(text); err == nil {
			t.Errorf("%.40q is %d", text, got)
		}
	}
}

func TestParseBandwidth(t *testing.T) {
	for text, want := range map[string]uint64{"10M": 10_000_000, "1Mi": 1 << 20, "1k": 1000, "1e6": 1_000_000, "1T": MaxBits, "0.5": 1, "2500m": 3, "1.5G": 1_500_000_000} {
		if got, err := ParseBandwidth(text); err != nil || got != want {
			t.Errorf("%q: %d %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "0", "-1M", "1P", "1E", "9e99", "1e100", "NaN", "10Mbit", "10 M", strings.Repeat("1", 40)} {
		if got, err := ParseBandwidth(text); err == nil {
			t.Errorf("%q is %d", text, got)
		}
	}
}

func TestBits(t *testing.T) {
	for text, want := range map[Bits]uint64{"": 0, "10k": MinBits, "10000": MinBits, "1.5M": 1_500_000, "1T": MaxBits} {
		if got, err := text.Parse(); err != nil || got != want {
			t.Errorf("%q: %d %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []Bits{"0", "9.999k", "1.001T", "2T", "-1M", "fast"} {
		if got, err := text.Parse(); err == nil {
			t.Errorf("%q is %d", text, got)
		}
	}
	for bits, want := range map[uint64]string{0: "0", 1: "1", 999: "999", 1000: "1k", 10_500: "10.5k", 1_234_567: "1234.567k", 500_000: "500k", 2_500_000: "2.5M", 1e9: "1G", 1e12: "1T"} {
		if got := FormatBits(bits); got != want {
			t.Errorf("%d is %q, want %q", bits, got, want)
		}
	}
}

func TestParseDelays(t *testing.T) {
	for text, want := range map[string]time.Duration{"0": 0, "10": 10 * time.Millisecond, "0.5": 500 * time.Microsecond, "10000": 10 * time.Second} {
		if got, err := ParseMilliseconds(text); err != nil || got != want {
			t.Errorf("%q: %v %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"-1", "10001", "10000.001", "1.0001", "10ms", "1e3", "NaN"} {
		if got, err := ParseMilliseconds(text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
	for text, want := range map[string]int{"0": 0, "999": 999, "1000": 1000} {
		if got, err := ParsePackets(text); err != nil || got != want {
			t.Errorf("%q: %v %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"-1", "1001", "1.5", "1.", "999999999999"} {
		if got, err := ParsePackets(text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
	for text, want := range map[string]int{"0": 0, "0.0001": 1, "5": 50_000, "100": 1_000_000} {
		if got, err := ParsePercent(text); err != nil || got != want {
			t.Errorf("%q: %v %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"-1", "100.0001", "101", "5%", "0.00001", "NaN"} {
		if got, err := ParsePercent(text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
	for loss, want := range map[int]int{0: 0, 1: 1, 5_000: 1, 14_000: 1, 15_000: 2, 1_000_000: 100} {
		if got := WholePercent(loss); got != want {
			t.Errorf("%d is %d percent, want %d", loss, got, want)
		}
	}
}

func TestParseLimits(t *testing.T) {
	const attachment = "net1.default.ovn"
	for name, test := range map[string]struct {
		annotations map[string]string
		provider    string
		want        LimitRequest
		invalid     int
	}{
		"none": {annotations: map[string]string{"ovn.kubernetes.io/ip_address": "10.16.0.2"}},
		"all": {
			annotations: map[string]string{
				"ovn.kubernetes.io/ingress_rate": " 10 ", "ovn.kubernetes.io/egress_rate": "2.5", "ovn.kubernetes.io/ingress_burst": "0", "ovn.kubernetes.io/egress_burst": "8",
				"ovn.kubernetes.io/latency": "20", "ovn.kubernetes.io/jitter": "1", "ovn.kubernetes.io/limit": "100", "ovn.kubernetes.io/loss": "1.5",
			},
			want: LimitRequest{
				IngressRate: 10_000_000, EgressRate: 2_500_000, IngressBurst: Burst{Set: true}, EgressBurst: Burst{Bits: 8_000_000, Set: true},
				Latency: 20 * time.Millisecond, Jitter: time.Millisecond, Limit: 100, Loss: 15_000,
			},
		},
		"of Kubernetes": {
			annotations: map[string]string{KeyIngressBandwidth: "10M", KeyEgressBandwidth: "1G"},
			want:        LimitRequest{IngressRate: 10_000_000, EgressRate: 1_000_000_000},
		},
		"Kube-OVN's take precedence": {
			annotations: map[string]string{KeyIngressBandwidth: "10M", KeyEgressBandwidth: "1G", "ovn.kubernetes.io/ingress_rate": "0", "ovn.kubernetes.io/egress_rate": "5"},
			want:        LimitRequest{EgressRate: 5_000_000},
		},
		"an invalid one leaves the other's": {
			annotations: map[string]string{KeyIngressBandwidth: "10M", KeyEgressBandwidth: "NaN", "ovn.kubernetes.io/ingress_rate": "fast"},
			want:        LimitRequest{IngressRate: 10_000_000},
			invalid:     2,
		},
		"of an attachment": {
			annotations: map[string]string{attachment + ".kubernetes.io/ingress_rate": "3", "ovn.kubernetes.io/egress_rate": "5", KeyEgressBandwidth: "1G"},
			provider:    attachment,
			want:        LimitRequest{IngressRate: 3_000_000},
		},
		"of a mirror pod": {annotations: map[string]string{"ovn.kubernetes.io/ingress_rate": "3", "kubernetes.io/config.mirror": "x", KeyEgressBandwidth: "1G"}},
	} {
		provider := test.provider
		if provider == "" {
			provider = ProviderOVN
		}
		if got := ParseLimits(test.annotations, provider); got != test.want {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
		if invalid := CheckRequests(OnPod, test.annotations); len(invalid) != test.invalid {
			t.Errorf("%s: invalid %v, want %d", name, invalid, test.invalid)
		}
	}
	keys := map[string]bool{
		"ovn.kubernetes.io/ingress_rate": true, attachment + ".kubernetes.io/loss": true, KeyIngressBandwidth: true,
		"ovn.kubernetes.io/ip_address": false, "example.com/loss": false, "kubernetes.io/loss": false, "loss": false,
	}
	for key := range maps.Keys(keys) {
		if IsLimit(key) != keys[key] {
			t.Errorf("IsLimit(%q) = %v", key, !keys[key])
		}
	}
}

func FuzzParseLimits(f *testing.F) {
	for _, s := range []string{"10", "1.5", "NaN", "1e9", "-1", "10M", "1Ei"} {
		f.Add(s)
	}
	// No text makes a request beyond the bounds.
	f.Fuzz(func(t *testing.T, s string) {
		annotations := map[string]string{KeyIngressBandwidth: s, KeyEgressBandwidth: s}
		for _, a := range LimitAnnotations[2:] {
			annotations[a.Key()] = s
		}
		for range 2 {
			r := ParseLimits(annotations, ProviderOVN)
			if max(r.IngressRate, r.EgressRate, r.IngressBurst.Bits, r.EgressBurst.Bits) > MaxBits || max(r.Latency, r.Jitter) > maxDelay || min(r.Latency, r.Jitter) < 0 ||
				r.Limit < 0 || r.Limit > MaxDelayed || r.Loss < 0 || r.Loss > 1_000_000 {
				t.Errorf("%q: %+v", s, r)
			}
			annotations[AnnotationIngressRate.Key()], annotations[AnnotationEgressRate.Key()] = s, s
		}
	})
}
