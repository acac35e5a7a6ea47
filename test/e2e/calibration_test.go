// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/test/cluster"
)

const calibrationNamespace = "e2e-calibration"

// usualPodStart is the start time of a pod on the idle machine that the tables of docs/ were measured on.
const usualPodStart = 2 * time.Second

// calibration holds the measurements of this machine at rest, made at the start of the suite.
var calibration struct {
	podStart, address time.Duration
	// connection is the slowest of a few connections between pods at rest.
	connection time.Duration
	// slowdown is the ratio of this machine's start time of a pod to the usual one, at least 1.
	slowdown float64
}

// calibrate starts pods one after another on both workers and uses the slowest.
func calibrate(ctx context.Context) {
	GinkgoHelper()
	makeNamespace(ctx, calibrationNamespace)
	for i := range 2 * len(suite.Workers) {
		name := fmt.Sprintf("calibration-%d", i)
		begun := time.Now()
		_, err := suite.Cluster.CoreV1().Pods(calibrationNamespace).Create(ctx, cluster.Server(calibrationNamespace, name, suite.Workers[i%len(suite.Workers)]), metav1.CreateOptions{})
		Expect(err).NotTo(HaveOccurred())
		_, err = suite.Cluster.WaitPod(ctx, calibrationNamespace, name, allocated)
		Expect(err).NotTo(HaveOccurred())
		calibration.address = max(calibration.address, time.Since(begun))
		_, err = suite.Cluster.WaitPod(ctx, calibrationNamespace, name, cluster.Ready)
		Expect(err).NotTo(HaveOccurred())
		calibration.podStart = max(calibration.podStart, time.Since(begun))
	}
	from, err := suite.Cluster.CoreV1().Pods(calibrationNamespace).Get(ctx, "calibration-0", metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	for _, name := range []string{"calibration-1", "calibration-2"} { // on the other node, and on the same one
		to, err := suite.Cluster.CoreV1().Pods(calibrationNamespace).Get(ctx, name, metav1.GetOptions{})
		Expect(err).NotTo(HaveOccurred())
		for _, a := range cluster.PodAddrs(to) {
			calibrateConnections(ctx, fromPod(from), netip.AddrPortFrom(a, cluster.HTTPPort))
		}
	}
	calibration.slowdown = max(1, calibration.podStart.Seconds()/usualPodStart.Seconds())
	AddReportEntry("calibration", fmt.Sprintf("a pod is ready after %s and has its address after %s, connections take %s at most: bounds are the values of the tables × 3 × %.1f",
		calibration.podStart.Round(time.Millisecond), calibration.address.Round(time.Millisecond), calibration.connection.Round(time.Millisecond), calibration.slowdown))
	deleteNamespace(ctx, calibrationNamespace)
}

// Pauses between two samples of the machine's speed: a sample takes 20 ms of a CPU.
const (
	usualSampling = 2 * time.Second
	timedSampling = 250 * time.Millisecond
)

var _ = BeforeEach(func() {
	if hasLabel(CurrentSpecReport(), timed) {
		waits.speed.SetPause(timedSampling)
	} else {
		waits.speed.SetPause(usualSampling)
	}
})

// measured is a report entry: a measured time and its limit, in seconds. `make test-timing` collects them.
type measured struct {
	What           string
	Seconds, Limit float64
}

func (t measured) String() string {
	return fmt.Sprintf("%s: %.2f s, at most %.2f s", t.What, t.Seconds, t.Limit)
}

// atMost reports a time, and expects it to be at most limit.
func atMost(took, limit time.Duration, what string) {
	GinkgoHelper()
	AddReportEntry("timing", measured{what, took.Seconds(), limit.Seconds()})
	Expect(took).To(BeNumerically("<=", limit), what)
}

// within reports the time since begun, and expects it to be at most three times its usual value, which is in a table of docs/. The limit follows the mean speed of the
// machine since begun.
func within(begun time.Time, usual time.Duration, what string) {
	GinkgoHelper()
	now := time.Now()
	atMost(now.Sub(begun), timesThree(usual, waits.speed.Factor(begun, now)), what)
}

// bound returns the limit of a median or a sum of the present spec whose usual value is in a table of docs/. It follows the mean speed of the machine.
func bound(usual time.Duration) time.Duration {
	return timesThree(usual, waits.speed.Factor(CurrentSpecReport().StartTime, time.Now()))
}

// boundAt returns the limit of a gap between two times whose usual duration is in a table of docs/. It follows the slowest sample of the machine around
// the gap: a stall of the machine lengthens a gap and hardly changes a mean.
func boundAt(usual time.Duration, from, to time.Time) time.Duration {
	return timesThree(usual, waits.speed.Slowest(from, to))
}

func timesThree(usual time.Duration, slowdown float64) time.Duration {
	return time.Duration(3 * max(calibration.slowdown, slowdown) * float64(usual))
}
