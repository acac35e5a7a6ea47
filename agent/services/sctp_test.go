// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/internal/testing/must"
)

// initOf returns an INIT chunk, which begins an SCTP association, with its common header (RFC 9260, 3.1 and 3.3.2).
func initOf(from, to uint16) []byte {
	b := make([]byte, 32)
	binary.BigEndian.PutUint16(b[0:], from)
	binary.BigEndian.PutUint16(b[2:], to)
	b[12] = 1                                      // INIT
	binary.BigEndian.PutUint16(b[14:], 20)         // length
	binary.BigEndian.PutUint32(b[16:], 0x6b696c6e) // initiate tag
	binary.BigEndian.PutUint32(b[20:], 65536)      // receiver window
	binary.BigEndian.PutUint16(b[24:], 1)          // outbound streams
	binary.BigEndian.PutUint16(b[26:], 1)          // inbound streams
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// TestServicesOfSCTP begins associations on raw sockets, because a kernel that can translate SCTP may not support SCTP sockets.
func TestServicesOfSCTP(t *testing.T) {
	if _, err := os.Stat("/proc/sys/net/netfilter/nf_conntrack_sctp_timeout_established"); err != nil {
		// A kernel without SCTP connection tracking cannot translate these packets. TestElements checks the rules on every kernel.
		t.Skip("the kernel does not track SCTP connections; TestElements has the rules")
	}
	w := newWorld(t)
	p := w.pod("a", 2)
	s := w.service("sctp", func(s *corev1.ServiceSpec) {
		s.Type, s.ExternalIPs = corev1.ServiceTypeNodePort, []string{"192.0.2.89", "2001:db8::89"}
		s.Ports = []corev1.ServicePort{{Port: 38412, Protocol: corev1.ProtocolSCTP}}
	})
	for i, of := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: fmt.Sprintf("sctp-%d", i), Labels: map[string]string{discoveryv1.LabelServiceName: "sctp"},
			},
			AddressType: of, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{p.ips[i].String()}, NodeName: new(nodeName)}},
			Ports: []discoveryv1.EndpointPort{{Name: new(""), Port: new(int32(9999)), Protocol: new(corev1.ProtocolSCTP)}},
		}
		must.Succeed(t, w.client.Create(t.Context(), slice))
		w.Cleanup(func() { w.delete(slice) })
	}
	for _, c := range []struct {
		name   string
		from   ns.NetNS
		to     netip.AddrPort
		client netip.Addr // the source address at the endpoint
	}{
		{"the node at the ClusterIP", nil, at(s.Spec.ClusterIP, 38412), nodeIPs[0].Addr()},
		{"the node at a node port", nil, netip.AddrPortFrom(nodeIPs[0].Addr(), uint16(s.Spec.Ports[0].NodePort)), nodeIPs[0].Addr()},
		{"outside at a node port", w.far, netip.AddrPortFrom(nodeIPs[0].Addr(), uint16(s.Spec.Ports[0].NodePort)), joinIPs[0].Addr()},
		{"outside at an external address", w.far, at("192.0.2.89", 38412), joinIPs[0].Addr()},
		{"outside at an external IPv6 address", w.far, at("2001:db8::89", 38412), joinIPs[1].Addr()},
	} {
		source := uint16(40000) // each attempt is a new association
		w.eventually(func() string {
			source++
			if got := w.associate(c.from, p, source, c.to); got != fmt.Sprintf("INIT to port 9999 from %s", c.client) {
				return fmt.Sprintf("%s: %s, want an INIT to port 9999 from %s", c.name, got, c.client)
			}
			return ""
		})
	}
}

// associate sends an INIT from a namespace (nil is the node's) and returns a description of the packet that the pod receives.
func (w *world) associate(from ns.NetNS, p *pod, source uint16, to netip.AddrPort) string {
	w.Helper()
	network, own := "ip4:132", p.ips[0]
	if to.Addr().Is6() {
		network, own = "ip6:132", p.ips[1]
	}
	var server *net.IPConn
	must.Succeed(w, p.ns.Do(func(ns.NetNS) (err error) {
		server, err = net.ListenIP(network, &net.IPAddr{IP: own.AsSlice()})
		return err
	}))
	defer server.Close()
	do := func(f func(ns.NetNS) error) error { return f(nil) }
	if from != nil {
		do = from.Do
	}
	err := do(func(ns.NetNS) error {
		c, err := net.DialIP(network, nil, &net.IPAddr{IP: to.Addr().AsSlice()})
		if err != nil {
			return err
		}
		_, err = c.Write(initOf(source, to.Port()))
		return errors.Join(err, c.Close())
	})
	if err != nil {
		return err.Error()
	}
	must.Succeed(w, server.SetReadDeadline(time.Now().Add(shortly)))
	packet := make([]byte, 100)
	n, address, err := server.ReadFromIP(packet)
	if err != nil || n < 13 || packet[12] != 1 {
		return fmt.Sprintf("%x, %v", packet[:n], err)
	}
	sees, _ := netip.AddrFromSlice(address.IP)
	return fmt.Sprintf("INIT to port %d from %s", binary.BigEndian.Uint16(packet[2:]), sees.Unmap())
}
