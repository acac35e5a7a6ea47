// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cniserver

import (
	"context"
	"path"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// Metrics under Kube-OVN's names, and the durations of the legs (stages) of an operation.
var (
	operationSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "cni_op_latency_seconds",
		Help:    "Duration of CNI operations in the agent, by HTTP status.",
		Buckets: []float64{.001, .002, .005, .01, .02, .03, .05, .075, .1, .15, .2, .3, .5, 1, 2, 5, 10, 30, 60, 120},
	}, []string{"node_name", "method", "status_code"})
	legSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "cni_op_leg_seconds",
		Help:    "Duration of each leg of the CNI operations add and del in the agent. docs/reference/cni.md describes the legs.",
		Buckets: prometheus.ExponentialBuckets(.0005, 1.6, 26), // to a minute
	}, []string{"node_name", "method", "leg"})
	addressSeconds = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "cni_wait_address_seconds_total",
		Help: "Time that ADD operations waited for the controller's annotation.",
	}, []string{"node_name"})
	connectivitySeconds = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "cni_wait_connectivity_seconds_total",
		Help: "Time that ADD operations waited for ovn-controller to install the port's flows.",
	}, []string{"node_name"})
)

func init() {
	metrics.Registry.MustRegister(operationSeconds, legSeconds, addressSeconds, connectivitySeconds)
}

// observe records an operation; its method is the last element of its path.
func observe(node, operationPath string, code int, took time.Duration) {
	operationSeconds.WithLabelValues(node, path.Base(operationPath), strconv.Itoa(code)).Observe(took.Seconds())
}

// Legs (stages) of operations. The legs of an ADD run one after another, except that the port legs run in parallel with configure and
// probe.
const (
	legTurn        = "turn"         // until an earlier operation on the same interface has ended
	legAddress     = "address"      // ADD: until the controller has written its annotation
	legNeighbours  = "neighbours"   // ADD in an underlay subnet: until it is known that no host has its addresses, and that its gateway answers
	legLink        = "link"         // the veth: made, or deleted
	legPort        = "port"         // the transaction of Open vSwitch's database
	legConfigure   = "configure"    // ADD: configuration of the container's namespace
	legProbe       = "probe"        // ADD in a custom VPC: the link for probes
	legProbeRoutes = "probe-routes" // ADD of a pod with probes in a custom VPC: the node's routes to it
	legAnnounce    = "announce"     // ADD: gratuitous ARP and unsolicited neighbour advertisements
	legOfport      = "ofport"       // ADD: from the transaction until ovs-vswitchd has the port
	legFlows       = "flows"        // ADD: from there until ovn-controller has installed the flows
)

// timed runs one leg of an operation and records its duration.
func (s *Server) timed(ctx context.Context, method, leg string, f func() error) error {
	began := time.Now()
	err := f()
	took := time.Since(began)
	legSeconds.WithLabelValues(s.Node, method, leg).Observe(took.Seconds())
	if logger := logr.FromContextOrDiscard(ctx).V(1); logger.Enabled() {
		if err != nil {
			logger = logger.WithValues("reason", err.Error())
		}
		logger.Info("leg of a CNI operation", "leg", leg, "took", took.String())
	}
	return err
}

// turn waits until no other operation on the interface runs, locks it, and returns the function that unlocks it.
func (s *Server) turn(ctx context.Context, method, containerID, ifName string) (unlock func(), err error) {
	err = s.timed(ctx, method, legTurn, func() error {
		unlock, err = s.locks.lock(ctx, containerID, ifName)
		return err
	})
	return unlock, err
}
