// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package limits decides the rates and delays of a port: what its pod requests, within what administrators permit.
package limits

import (
	"fmt"
	"time"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// Rate is the limit of one direction. The zero value is no limit.
type Rate struct {
	// Bits is in bit/s.
	Bits uint64
	// Burst is the number of bits that may pass at once after a pause.
	Burst uint64
}

// Netem delays and loses packets to a pod. The zero value does neither.
type Netem struct {
	Latency, Jitter time.Duration
	// Packets is the number of packets that may wait; 0 for the default of the kernel.
	Packets int
	// Loss is in percent.
	Loss int
}

// Port has the limits of one port. The directions are the pod's.
type Port struct {
	Ingress, Egress Rate
	// Netem is empty with Ingress: a port has one of them.
	Netem Netem
}

// Bounds of bursts in bits.
const (
	// minBurst is the largest packet of a pod's interface (GSO, 64 KiB): no packet above the burst ever passes.
	minBurst = 65536 * 8
	// maxBurst is below 4 GiB, which the kernel's 32 bits hold, and maxBurstSeconds is in seconds of the rate, which its clock of 64 ns holds.
	maxBurst        = 32_000_000_000
	maxBurstSeconds = 60
)

// leastBurst returns the least burst with which TCP reaches a rate: what it passes in half a second.
func leastBurst(rate uint64) uint64 { return min(max(rate/2, minBurst), maxBurst) }

// Effective returns the limits of a port: the lower one of each request and the administrators' limit, which may be nil. The messages are for the pod's user:
// each names a requested value and the applied one. A node with the userspace datapath delays no packets.
func Effective(r kubeovnv1.LimitRequest, admin *kubeovnv1.PodLimits, userspace bool) (Port, []string) {
	if r == (kubeovnv1.LimitRequest{}) && admin == nil {
		return Port{}, nil
	}
	if admin == nil {
		admin = &kubeovnv1.PodLimits{}
	}
	in := side{name: "ingress", rate: r.IngressRate, burst: r.IngressBurst, admin: rateOf(admin.IngressRate, admin.IngressBurst)}
	out := side{name: "egress", rate: r.EgressRate, burst: r.EgressBurst, admin: rateOf(admin.EgressRate, admin.EgressBurst)}
	port := Port{
		Ingress: in.effective(), Egress: out.effective(),
		Netem: Netem{Latency: r.Latency, Jitter: r.Jitter, Packets: r.Limit, Loss: kubeovnv1.WholePercent(r.Loss)},
	}
	adjusted := append(in.adjusted, out.adjusted...)
	switch requested := port.Netem != (Netem{}); {
	case requested && userspace:
		port.Netem = Netem{}
		adjusted = append(adjusted, "latency, jitter, limit and loss are not applied: the userspace datapath of this cluster has no such function")
	case requested && port.Ingress != (Rate{}):
		port.Netem = Netem{}
		of, remedy := "the rate of %s to the pod", "Remove one of the two"
		if in.rate == 0 {
			of, remedy = "the limit of %s of administrators (podLimits of the Subnet or of the OVNCluster)", "Remove the four annotations"
		}
		adjusted = append(adjusted, fmt.Sprintf("latency, jitter, limit and loss are not applied: "+of+" takes precedence over them. "+remedy, rateText(port.Ingress.Bits)))
	case port.Netem.Loss*1e4 != r.Loss:
		adjusted = append(adjusted, fmt.Sprintf("loss %g is applied as %d: Open vSwitch knows whole percent", float64(r.Loss)/1e4, port.Netem.Loss))
	}
	if port.Netem.Jitter > port.Netem.Latency {
		adjusted = append(adjusted, fmt.Sprintf("jitter %v is applied as %v, the latency", port.Netem.Jitter, port.Netem.Latency))
		port.Netem.Jitter = port.Netem.Latency
	}
	return port, adjusted
}

// side computes the limit of one direction.
type side struct {
	name     string
	rate     uint64
	burst    kubeovnv1.Burst
	admin    Rate
	adjusted []string
}

func (s *side) effective() Rate {
	rate := Rate{Bits: s.rate}
	if rate.Bits > 0 && rate.Bits < kubeovnv1.MinBits {
		s.adjust("%s rate %s is raised to %s, the least that nodes enforce", s.name, rateText(rate.Bits), rateText(kubeovnv1.MinBits))
		rate.Bits = kubeovnv1.MinBits
	}
	if s.admin.Bits > 0 && (rate.Bits == 0 || rate.Bits > s.admin.Bits) {
		if rate.Bits > 0 {
			s.adjust("%s rate %s is lowered to %s, the limit of administrators (podLimits of the Subnet or of the OVNCluster)", s.name, rateText(rate.Bits), rateText(s.admin.Bits))
		}
		rate.Bits = s.admin.Bits
	}
	if rate.Bits == 0 {
		return Rate{}
	}
	least := leastBurst(rate.Bits)
	rate.Burst = least
	switch {
	case s.burst.Set && s.burst.Bits < least:
		s.adjust("%s burst %s bit is raised to %s bit: with less, TCP does not reach the rate of %s", s.name, kubeovnv1.FormatBits(s.burst.Bits), kubeovnv1.FormatBits(least), rateText(rate.Bits))
	case s.burst.Set:
		rate.Burst = s.burst.Bits
	case rate.Bits == s.admin.Bits:
		rate.Burst = max(least, s.admin.Burst)
	}
	most, why := min(rate.Bits*maxBurstSeconds, maxBurst), "the most that nodes count"
	if s.admin.Bits > 0 {
		if permitted := max(s.admin.Burst, least); permitted < most {
			most, why = permitted, "the limit of administrators"
		}
	}
	if rate.Burst > most {
		if s.burst.Set {
			s.adjust("%s burst %s bit is lowered to %s bit: %s", s.name, kubeovnv1.FormatBits(rate.Burst), kubeovnv1.FormatBits(most), why)
		}
		rate.Burst = most
	}
	return rate
}

func (s *side) adjust(format string, a ...any) {
	s.adjusted = append(s.adjusted, fmt.Sprintf(format, a...))
}

// rateOf returns a limit of administrators. A value that cannot be parsed is no limit: the API server and validation refuse it.
func rateOf(rate, burst kubeovnv1.Bits) Rate {
	bits, err := rate.Parse()
	if err != nil || bits == 0 {
		return Rate{}
	}
	b, err := burst.Parse()
	if err != nil {
		b = 0
	}
	return Rate{Bits: bits, Burst: max(leastBurst(bits), min(b, maxBurst))}
}

// OfSubnet returns the limits that apply to the pods of a subnet, for comparisons.
func OfSubnet(s *kubeovnv1.Subnet) kubeovnv1.PodLimits {
	if s.Status.PodLimits == nil {
		return kubeovnv1.PodLimits{}
	}
	return *s.Status.PodLimits
}

// Kilo returns a number of bits in thousands, rounded up: the unit of policing and of OVN's meters.
func Kilo(bits uint64) int {
	return int((bits + 999) / 1000) //nolint:gosec // Effective bounds it
}

// rateText returns a rate with its unit.
func rateText(bits uint64) string { return kubeovnv1.FormatBits(bits) + "bit/s" }

// Merge returns the limits of a subnet's pods: of the subnet or, for a direction without a rate, of the cluster. It is nil without a limit.
func Merge(subnet, cluster *kubeovnv1.PodLimits) *kubeovnv1.PodLimits {
	var merged kubeovnv1.PodLimits
	for _, from := range []*kubeovnv1.PodLimits{subnet, cluster} {
		if from == nil {
			continue
		}
		if merged.IngressRate == "" {
			merged.IngressRate, merged.IngressBurst = from.IngressRate, from.IngressBurst
		}
		if merged.EgressRate == "" {
			merged.EgressRate, merged.EgressBurst = from.EgressRate, from.EgressBurst
		}
	}
	if merged.IngressRate == "" {
		merged.IngressBurst = ""
	}
	if merged.EgressRate == "" {
		merged.EgressBurst = ""
	}
	if merged == (kubeovnv1.PodLimits{}) {
		return nil
	}
	return &merged
}
