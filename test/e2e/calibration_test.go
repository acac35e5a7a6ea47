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

// within reports the time since begun, and expects it to be at most bound(usual); usual is a value of docs/.
func within(begun time.Time, usual time.Duration, what string) {
	GinkgoHelper()
	took := time.Since(begun)
	AddReportEntry(what, fmt.Sprintf("after %s", took.Round(100*time.Millisecond)))
	Expect(took).To(BeNumerically("<=", bound(usual)), what)
}

// bound returns the time limit of an operation of the present spec that takes d in a table of docs/.
func bound(d time.Duration) time.Duration {
	slowdown := max(calibration.slowdown, waits.speed.Factor(CurrentSpecReport().StartTime, time.Now()))
	return time.Duration(3 * slowdown * float64(d))
}
