// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoints_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kiln-net/kiln/internal/endpoints"
)

func slice(family discoveryv1.AddressType, ports ...discoveryv1.EndpointPort) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{AddressType: family, Ports: ports, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.16.0.2"}}}}
}

func port(name string, number int32) discoveryv1.EndpointPort {
	return discoveryv1.EndpointPort{Name: &name, Port: &number}
}

func TestByPort(t *testing.T) {
	udp := corev1.ProtocolUDP
	dns := port("dns", 53)
	dns.Protocol = &udp
	without := slice(discoveryv1.AddressTypeIPv4, port("web", 8083))
	without.Endpoints = nil
	index := endpoints.ByPort([]*discoveryv1.EndpointSlice{
		slice(discoveryv1.AddressTypeIPv4, port("web", 8080), port("web", 9090), port("zero", 0), port("large", 65536), port("last", 65535), discoveryv1.EndpointPort{}),
		slice(discoveryv1.AddressTypeIPv4, port("web", 8081), dns),
		slice(discoveryv1.AddressTypeIPv6, port("web", 8082)),
		without,
	})
	for _, c := range []struct {
		name, port string
		protocol   corev1.Protocol
		family     discoveryv1.AddressType
		want       []uint16
	}{
		{"each slice has its own number, the first one of a name counts", "web", corev1.ProtocolTCP, discoveryv1.AddressTypeIPv4, []uint16{8080, 8081}},
		{"no protocol is TCP", "web", "", discoveryv1.AddressTypeIPv4, []uint16{8080, 8081}},
		{"families are apart", "web", corev1.ProtocolTCP, discoveryv1.AddressTypeIPv6, []uint16{8082}},
		{"protocols are apart", "dns", corev1.ProtocolTCP, discoveryv1.AddressTypeIPv4, nil},
		{"UDP", "dns", corev1.ProtocolUDP, discoveryv1.AddressTypeIPv4, []uint16{53}},
		{"0 is skipped", "zero", "", discoveryv1.AddressTypeIPv4, nil},
		{"65536 is skipped", "large", "", discoveryv1.AddressTypeIPv4, nil},
		{"65535 is the last number", "last", "", discoveryv1.AddressTypeIPv4, []uint16{65535}},
		{"a port without a number is skipped", "", "", discoveryv1.AddressTypeIPv4, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := index[endpoints.KeyOf(c.port, c.protocol, c.family)]
			if len(got) != len(c.want) {
				t.Fatalf("got %v, want %v", got, c.want)
			}
			for i := range got {
				if got[i].Number != c.want[i] {
					t.Errorf("got port %d, want %d", got[i].Number, c.want[i])
				}
			}
		})
	}
}

func TestStateOf(t *testing.T) {
	for _, c := range []struct {
		name                        string
		ready, serving, terminating *bool
		want                        endpoints.State
	}{
		{"no conditions", nil, nil, nil, endpoints.Ready},
		{"ready", new(true), new(true), new(false), endpoints.Ready},
		{"ready and terminating, as with publishNotReadyAddresses", new(true), new(true), new(true), endpoints.Ready},
		{"terminating and serving", new(false), new(true), new(true), endpoints.Draining},
		{"terminating without the condition serving", new(false), nil, new(true), endpoints.Draining},
		{"terminating and not serving", new(false), new(false), new(true), endpoints.NotServing},
		{"not ready, not terminating", new(false), new(true), new(false), endpoints.NotServing},
		{"not ready without the others", new(false), nil, nil, endpoints.NotServing},
	} {
		e := &discoveryv1.Endpoint{Conditions: discoveryv1.EndpointConditions{Ready: c.ready, Serving: c.serving, Terminating: c.terminating}}
		if got := endpoints.StateOf(e); got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}
