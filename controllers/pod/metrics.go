// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// Legs are the latency stages of a pod's path, in order. Each is measured from the end of the previous one.
const (
	stageSeen      = "seen"      // from the pod's creation, whose time has a resolution of one second, until its first event on a node
	stageAddress   = "address"   // until the address is chosen
	stageCommitted = "committed" // until the port is in the northbound database
	stageAnnotated = "annotated" // until the pod's annotations contain the network
)

// stageBuckets are from half a millisecond to 25 seconds.
var stageBuckets = prometheus.ExponentialBuckets(0.0005, 1.5, 28)

var (
	stageSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:                        "kiln_pod_leg_seconds",
		Help:                        "Time that new pods take for each leg of their path: seen, address, committed, annotated.",
		Buckets:                     stageBuckets,
		NativeHistogramBucketFactor: 1.1,
	}, []string{"leg"})
	wholePath = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:                        "kiln_pod_network_seconds",
		Help:                        "Time from a new pod's first event on a node until it is annotated with its network.",
		Buckets:                     stageBuckets,
		NativeHistogramBucketFactor: 1.1,
	})
)

// exportMetrics registers the metrics of this package when a process runs the controller of pods. Other processes of the program do not export them.
var exportMetrics = sync.OnceFunc(func() {
	metrics.Registry.MustRegister(stageSeconds, wholePath)
})

// latencies measures the latency of pods that have no network yet. It drops pods that wait for a change by a user.
type latencies struct {
	mu   sync.Mutex
	pods map[types.UID]latency
}

type latency struct{ created, seen, reached time.Time }

// begin starts the measurement at the first event of a pod that needs a network.
func (j *latencies) begin(pod metav1.Object) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, ok := j.pods[pod.GetUID()]; ok {
		return
	}
	if j.pods == nil {
		j.pods = map[types.UID]latency{}
	}
	now := time.Now()
	j.pods[pod.GetUID()] = latency{created: pod.GetCreationTimestamp().Time, seen: now, reached: now}
}

// reached records the end of a leg that this process worked on; a standby only sees pods. Work after the last leg, such as a new gateway
// of the pod's subnet, is not measured.
func (j *latencies) reached(pod types.UID, leg string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	was, ok := j.pods[pod]
	if !ok {
		return
	}
	now := time.Now()
	stageSeconds.WithLabelValues(leg).Observe(now.Sub(was.reached).Seconds())
	switch leg {
	case stageAddress:
		stageSeconds.WithLabelValues(stageSeen).Observe(was.seen.Sub(was.created).Seconds())
	case stageAnnotated:
		wholePath.Observe(now.Sub(was.seen).Seconds())
		delete(j.pods, pod)
		return
	}
	was.reached = now
	j.pods[pod] = was
}

// end stops the measurement of a pod.
func (j *latencies) end(pod types.UID) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.pods, pod)
}
