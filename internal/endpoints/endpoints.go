// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package endpoints indexes the EndpointSlices of a Service by port. The controller and the agents share it, so that pods and nodes
// reach the same endpoints.
package endpoints

import (
	"cmp"
	"math"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Key identifies a port of a Service, by name, in its EndpointSlices of one family.
type Key struct {
	port     string
	protocol corev1.Protocol
	family   discoveryv1.AddressType
}

// KeyOf returns the key of a port. An empty protocol is TCP, as in the API (core/v1, ServicePort; discovery.k8s.io/v1, EndpointPort).
func KeyOf(port string, protocol corev1.Protocol, family discoveryv1.AddressType) Key {
	return Key{port: port, protocol: cmp.Or(protocol, corev1.ProtocolTCP), family: family}
}

// KeyIn returns the key of a port of an EndpointSlice.
func KeyIn(slice *discoveryv1.EndpointSlice, port *discoveryv1.EndpointPort) Key {
	return KeyOf(valueOf(port.Name), valueOf(port.Protocol), slice.AddressType)
}

// Port is an EndpointSlice and the number of the port in it. The endpoints of a slice share its port numbers.
type Port struct {
	Slice  *discoveryv1.EndpointSlice
	Number uint16
}

// Index holds the EndpointSlices of a Service by port: a Service may have thousands of both.
type Index map[Key][]Port

// ByPort indexes slices. If a slice has two ports with one name and protocol, the first one counts. ByPort skips numbers outside 1 to 65535: the API
// server accepts any number in an EndpointSlice.
func ByPort(slices []*discoveryv1.EndpointSlice) Index {
	index := Index{}
	for _, slice := range slices {
		seen := map[Key]bool{}
		for i := range slice.Ports {
			port := &slice.Ports[i]
			key := KeyIn(slice, port)
			if port.Port == nil || seen[key] || len(slice.Endpoints) == 0 {
				continue
			}
			seen[key] = true
			if *port.Port >= 1 && *port.Port <= math.MaxUint16 {
				index[key] = append(index[key], Port{slice, uint16(*port.Port)})
			}
		}
	}
	return index
}

// State says whether an endpoint may get connections.
type State int

const (
	// NotServing endpoints get no connection.
	NotServing State = iota
	// Draining endpoints terminate and still serve: they get connections where no endpoint is Ready.
	Draining
	// Ready endpoints get connections. An unset ready condition counts as true (discovery.k8s.io/v1, EndpointConditions).
	Ready
)

// AddressOf returns the address of an endpoint, "" if it has none. Further addresses have no meaning (discovery.k8s.io/v1, Endpoint).
func AddressOf(e *discoveryv1.Endpoint) string {
	if len(e.Addresses) == 0 {
		return ""
	}
	return e.Addresses[0]
}

// StateOf returns the state of an endpoint. An unset serving condition counts as true, an unset terminating condition as false.
func StateOf(e *discoveryv1.Endpoint) State {
	c := &e.Conditions
	switch {
	case c.Ready == nil || *c.Ready:
		return Ready
	case (c.Serving == nil || *c.Serving) && valueOf(c.Terminating):
		return Draining
	}
	return NotServing
}

func valueOf[T any](p *T) (value T) {
	if p != nil {
		value = *p
	}
	return value
}
