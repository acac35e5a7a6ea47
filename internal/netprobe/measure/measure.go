// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package measure measures a network path between two of its processes, a Server and the client of a Measurement: throughput, round trips, connections
// and packets. `kubectl ko perf` and the benchmarks run both in pods.
package measure

import (
	"errors"
	"fmt"
	"time"
)

// Kinds of measurements.
const (
	Stream     = "stream"      // as much as TCP passes on one connection, by the server's count
	RR         = "rr"          // a message and its echo, one after another on one TCP connection
	UDPRR      = "udp-rr"      // the same with datagrams
	CRR        = "crr"         // a TCP connection for each byte
	Packets    = "packets"     // small UDP packets as fast as possible
	Full       = "full"        // the largest UDP packets that the path passes without fragments, as fast as possible
	SteadyFull = "steady-full" // as much as TCP passes, in each second
	Steady     = "steady"      // UDP packets at a rate, in each second
)

// Measurement is one measurement by a client.
type Measurement struct {
	Kind string `json:"kind"`
	// Address is the server's host:port.
	Address  string        `json:"address"`
	Duration time.Duration `json:"duration"`
	// Key is the server's.
	Key string `json:"key,omitempty"`
	// Size of a message in bytes, for RR and UDPRR. A message has one byte if it is 0.
	Size int `json:"size,omitempty"`
	// Rate in bit/s, for Steady.
	Rate float64 `json:"rate,omitempty"`
	// Segmentation sends several packets of Steady at a time.
	Segmentation bool `json:"segmentation,omitempty"`
}

// Result is the result of a measurement. Rate is per second: bits for Stream; exchanges for RR and UDPRR; connections for CRR; packets received for
// Packets and Full; bits that arrived after the first 3 s for Steady and SteadyFull.
type Result struct {
	Rate float64 `json:"rate"`
	// Lost is the part of packets that did not arrive, or of datagrams without an echo. Sent is the number of packets, for Steady.
	Lost float64 `json:"lost,omitempty"`
	Sent int     `json:"sent,omitempty"`
	// Size is the payload of a packet in bytes, for Packets and Full.
	Size int `json:"size,omitempty"`
	// Median and P99 are times of an exchange or a connection in microseconds.
	Median float64 `json:"medianMicroseconds,omitempty"`
	P99    float64 `json:"p99Microseconds,omitempty"`
	// Seconds has the bits that arrived in each second since the first packet, for Steady and SteadyFull.
	Seconds []float64 `json:"seconds,omitempty"`
}

// Outcome is the result of a measurement, or the error of one that failed.
type Outcome struct {
	Result
	Error string `json:"error,omitempty"`
}

// largestMessage bounds Size: a datagram's payload with IPv4.
const largestMessage = 65507

var runs = map[string]func(Measurement) (Result, error){
	Stream: Measurement.stream, RR: Measurement.exchanges, UDPRR: Measurement.datagrams, CRR: Measurement.connections,
	Packets: Measurement.packets, Full: Measurement.fullPackets, SteadyFull: Measurement.steadyFull, Steady: Measurement.steady,
}

// Run measures for Duration, and waits for the server's answer for about a minute more at most.
func (m Measurement) Run() (Result, error) {
	run, known := runs[m.Kind]
	switch {
	case !known:
		return Result{}, fmt.Errorf("no measurement %q", m.Kind)
	case m.Duration <= 0:
		return Result{}, errors.New("the duration must be greater than 0")
	case m.Size < 0 || m.Size > largestMessage:
		return Result{}, fmt.Errorf("a message of %d bytes: the largest has %d", m.Size, largestMessage)
	case m.Kind == Steady && !(m.Rate > 0):
		return Result{}, errors.New("the rate must be greater than 0")
	}
	return run(m)
}

// RunAll makes measurements one after another, also after one that failed.
func RunAll(list []Measurement) []Outcome {
	outcomes := make([]Outcome, len(list))
	for i, m := range list {
		var err error
		if outcomes[i].Result, err = m.Run(); err != nil {
			outcomes[i].Error = err.Error()
		}
	}
	return outcomes
}
