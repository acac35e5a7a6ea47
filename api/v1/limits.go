// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Bits is a number of bits, or of bits per second, such as 500k, 10M or 2.5G. The suffixes are powers of 1000.
// +kubebuilder:validation:MaxLength=20
// +kubebuilder:validation:Pattern=`^[0-9]{1,13}([.][0-9]{1,3})?[kMGT]?$`
// +kubebuilder:validation:XValidation:rule="quantity(self).compareTo(quantity('10k')) >= 0 && quantity(self).compareTo(quantity('1T')) <= 0",message="must be from 10k to 1T"
type Bits string

// PodLimits are the highest rates of each port of a pod, which administrators set. The directions are the pod's. An annotation of a pod can only
// request less.
// +kubebuilder:validation:XValidation:rule="(has(self.ingressRate) || !has(self.ingressBurst)) && (has(self.egressRate) || !has(self.egressBurst))",message="a burst needs the rate of its direction: set ingressRate with ingressBurst, and egressRate with egressBurst"
type PodLimits struct {
	// ingressRate is the highest rate, in bit/s, of traffic to the pod. Empty: no limit.
	// +optional
	IngressRate Bits `json:"ingressRate,omitempty"`
	// egressRate is the highest rate, in bit/s, of traffic from the pod. Empty: no limit.
	// +optional
	EgressRate Bits `json:"egressRate,omitempty"`
	// ingressBurst is the highest number of bits that may pass at once after a pause, with ingressRate. Empty: what ingressRate passes in half a
	// second.
	// +optional
	IngressBurst Bits `json:"ingressBurst,omitempty"`
	// egressBurst is the same for egressRate.
	// +optional
	EgressBurst Bits `json:"egressBurst,omitempty"`
}

// Bounds of rates and bursts, and of delays. They keep the numbers within what the kernel and Open vSwitch calculate with.
const (
	// MinBits is the least rate, in bit/s, that the kernel enforces with bursts of a packet.
	MinBits = 10_000
	// MaxBits is the highest rate in bit/s, and the highest burst in bits.
	MaxBits = 1_000_000_000_000
	// maxDelay bounds latency and jitter.
	maxDelay = 10 * time.Second
	// MaxDelayed bounds the number of packets that wait, to the kernel's default. A packet of a pod has up to 64 KiB, and the memory of the node, not of the
	// pod, holds it.
	MaxDelayed = 1000
)

// The annotations of Kubernetes for the rates of a pod's first network, as quantities in bit/s.
const (
	KeyIngressBandwidth = "kubernetes.io/ingress-bandwidth"
	KeyEgressBandwidth  = "kubernetes.io/egress-bandwidth"
)

// BandwidthKeys are the annotations of Kubernetes for rates. AnnotationIngressRate and AnnotationEgressRate take precedence over them.
var BandwidthKeys = []string{KeyIngressBandwidth, KeyEgressBandwidth}

// LimitAnnotations are the requests of limits, for each network of a pod.
var LimitAnnotations = []Annotation{
	AnnotationIngressRate, AnnotationEgressRate, AnnotationIngressBurst, AnnotationEgressBurst,
	AnnotationLatency, AnnotationJitter, AnnotationLimit, AnnotationLoss,
}

// IsLimit reports whether an annotation's key requests a limit, for any network of a pod.
func IsLimit(key string) bool {
	domain, name, _ := strings.Cut(key, "/")
	if strings.HasSuffix(domain, AnnotationDomain) {
		for _, a := range LimitAnnotations {
			if name == string(a) {
				return true
			}
		}
	}
	return key == KeyIngressBandwidth || key == KeyEgressBandwidth
}

// Parse returns the number of bits. It is 0 for an empty text.
func (b Bits) Parse() (uint64, error) {
	if b == "" {
		return 0, nil
	}
	n, err := parseQuantity(string(b))
	if err == nil && (n < MinBits || n > MaxBits) {
		err = errors.New("must be from 10k to 1T")
	}
	return n, err
}

// FormatBits returns a number of bits as Bits have it: the shortest of the forms without a loss.
func FormatBits(n uint64) string {
	for _, unit := range []struct {
		of     uint64
		suffix string
	}{{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if n >= unit.of && n%(unit.of/1000) == 0 {
			text := strconv.FormatFloat(float64(n)/float64(unit.of), 'f', -1, 64)
			return text + unit.suffix
		}
	}
	return strconv.FormatUint(n, 10)
}

// QuantityForm is the regular expression of the quantities that are read, so that the work for a text of tenants is bounded.
const QuantityForm = `^[0-9]{1,13}([.][0-9]{1,9})?([numkMGTPE]|[KMGTPE]i|[eE][0-9]{1,2})?$`

var quantityForm = regexp.MustCompile(QuantityForm)

// parseQuantity parses a quantity of Kubernetes, in bits.
func parseQuantity(s string) (uint64, error) {
	const form = "write a number of bit/s such as 10M"
	if !quantityForm.MatchString(s) {
		return 0, fmt.Errorf("is not a quantity from 0 to 1T: %s", form)
	}
	q, err := resource.ParseQuantity(s)
	if err != nil {
		return 0, fmt.Errorf("is not a quantity: %s", form)
	}
	if q.Sign() < 0 || q.CmpInt64(MaxBits) > 0 {
		return 0, fmt.Errorf("must be from 0 to 1T: %s", form)
	}
	n := q.Value() // rounded up
	if n < 0 {
		return 0, fmt.Errorf("must be from 0 to 1T: %s", form)
	}
	return uint64(n), nil
}

// ParseBandwidth parses an annotation of BandwidthKeys, in bit/s.
func ParseBandwidth(s string) (uint64, error) {
	n, err := parseQuantity(s)
	if err == nil && n == 0 {
		err = errors.New("must be more than 0: write a number of bit/s such as 10M")
	}
	return n, err
}

// parseDecimal parses digits with at most the given number of decimals, as a number of units of the last decimal. It accepts no sign and no exponent.
func parseDecimal(s string, decimals int) (uint64, error) {
	whole, fraction, point := strings.Cut(s, ".")
	if whole == "" || point && fraction == "" || len(fraction) > decimals || len(whole) > 12 {
		return 0, errors.New("is not a number")
	}
	digits := whole + fraction + strings.Repeat("0", decimals-len(fraction))
	for _, d := range digits {
		if d < '0' || d > '9' {
			return 0, errors.New("is not a number")
		}
	}
	return strconv.ParseUint(digits, 10, 64)
}

// ParseMegabits parses a number of Mbit or Mbit/s with up to six decimals. The result is in bits. 0 is valid.
func ParseMegabits(s string) (uint64, error) {
	n, err := parseDecimal(s, 6)
	if err != nil || n > MaxBits {
		return 0, errors.New("must be a number from 0 to 1000000, of Mbit, with up to six decimals")
	}
	return n, nil
}

// ParseMilliseconds parses a delay in ms.
func ParseMilliseconds(s string) (time.Duration, error) {
	n, err := parseDecimal(s, 3)
	if err != nil || n > uint64(maxDelay/time.Microsecond) {
		return 0, fmt.Errorf("must be a number from 0 to %d, of milliseconds", maxDelay.Milliseconds())
	}
	return time.Duration(n) * time.Microsecond, nil
}

// ParsePackets parses the number of packets that may wait.
func ParsePackets(s string) (int, error) {
	n, err := parseDecimal(s, 0)
	if err != nil || n > MaxDelayed {
		return 0, fmt.Errorf("must be a number from 0 to %d, of packets", MaxDelayed)
	}
	return int(n), nil
}

// ParsePercent parses a part of packets in percent. The result is in ten-thousandths of a percent.
func ParsePercent(s string) (int, error) {
	n, err := parseDecimal(s, 4)
	if err != nil || n > 100*1e4 {
		return 0, errors.New("must be a number from 0 to 100, of percent, with up to four decimals")
	}
	return int(n), nil
}

// LimitRequest has the limits that a pod's annotations request for one of its networks. The directions are the pod's; rates are in bit/s, bursts in bits, and 0 is
// no request.
type LimitRequest struct {
	IngressRate, EgressRate   uint64
	IngressBurst, EgressBurst Burst
	Latency, Jitter           time.Duration
	// Limit is the number of packets that may wait, Loss the part of packets that are lost, in ten-thousandths of a percent.
	Limit, Loss int
}

// Burst is a requested burst in bits. Set distinguishes a burst of 0 from no request.
type Burst struct {
	Bits uint64
	Set  bool
}

// ParseLimits returns the limits that a pod requests for a network. It leaves invalid requests out: CheckRequests returns an error for each.
func ParseLimits(annotations map[string]string, provider string) LimitRequest {
	var r LimitRequest
	for key := range annotations { // most pods request none
		if IsLimit(key) {
			r.parse(annotations, provider)
			return r
		}
	}
	return r
}

func (r *LimitRequest) parse(annotations map[string]string, provider string) {
	r.IngressRate, _ = requestFor(annotations, provider, AnnotationIngressRate, ParseMegabits)
	r.EgressRate, _ = requestFor(annotations, provider, AnnotationEgressRate, ParseMegabits)
	r.IngressBurst.Bits, r.IngressBurst.Set = requestFor(annotations, provider, AnnotationIngressBurst, ParseMegabits)
	r.EgressBurst.Bits, r.EgressBurst.Set = requestFor(annotations, provider, AnnotationEgressBurst, ParseMegabits)
	r.Latency, _ = requestFor(annotations, provider, AnnotationLatency, ParseMilliseconds)
	r.Jitter, _ = requestFor(annotations, provider, AnnotationJitter, ParseMilliseconds)
	r.Limit, _ = requestFor(annotations, provider, AnnotationLimit, ParsePackets)
	r.Loss, _ = requestFor(annotations, provider, AnnotationLoss, ParsePercent)
	if provider != ProviderOVN {
		return
	}
	for key, of := range map[string]struct {
		own  Annotation
		rate *uint64
	}{KeyIngressBandwidth: {AnnotationIngressRate, &r.IngressRate}, KeyEgressBandwidth: {AnnotationEgressRate, &r.EgressRate}} {
		if _, own := requestFor(annotations, provider, of.own, ParseMegabits); !own {
			*of.rate, _ = requestWith(annotations, key, ParseBandwidth)
		}
	}
}

func requestFor[T any](annotations map[string]string, provider string, a Annotation, parse func(string) (T, error)) (T, bool) {
	return requestWith(annotations, a.For(provider), parse)
}

// requestWith parses the request of a key. It returns false if the request is missing or invalid.
func requestWith[T any](annotations map[string]string, key string, parse func(string) (T, error)) (request T, valid bool) {
	text, err := RequestText(annotations, key)
	if err != nil || text == "" {
		return request, false
	}
	parsed, err := parse(text)
	if err != nil {
		return request, false
	}
	return parsed, true
}

// checkBandwidths returns an AnnotationError for each invalid annotation of BandwidthKeys.
func checkBandwidths(annotations map[string]string) (invalid []error) {
	for _, key := range BandwidthKeys {
		value, err := RequestText(annotations, key)
		if err == nil && value != "" {
			if _, err = ParseBandwidth(value); err != nil {
				err = &AnnotationError{Key: key, Value: value, Err: err}
			}
		}
		if err != nil {
			invalid = append(invalid, err)
		}
	}
	return invalid
}

// WholePercent returns a loss of LimitRequest in whole percent, which is what Open vSwitch knows, rounded to the nearest but not to 0.
func WholePercent(loss int) int {
	if loss <= 0 {
		return 0
	}
	return max(1, int(math.Round(float64(loss)/1e4)))
}
