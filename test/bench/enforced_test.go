// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"testing"
)

var (
	fromStation = station{mac: net.HardwareAddr{2, 0, 0, 0, 0, 1}, ip: netip.MustParseAddr("10.16.0.2")}
	toStation   = station{mac: net.HardwareAddr{2, 0, 0, 0, 0, 2}, ip: netip.MustParseAddr("10.16.0.3")}
)

// TestReportOfOutcomes checks that probes with and without their markers are reported as passed and as dropped.
func TestReportOfOutcomes(t *testing.T) {
	var received bytes.Buffer
	foreign := ethernet(fromStation, toStation, 0x86dd)
	padded := append(markerFrame(fromStation, toStation, 0), make([]byte, 16)...)
	for _, frame := range [][]byte{
		synFrame(fromStation, toStation, 1024, 80), markerFrame(fromStation, toStation, 1024),
		foreign, padded, markerFrame(fromStation, toStation, 1025),
		synFrame(fromStation, toStation, 1026, 80), markerFrame(fromStation, toStation, 1026),
	} {
		if err := writeFrame(&received, frame); err != nil {
			t.Fatal(err)
		}
	}
	outcomes := make(chan outcome, 10)
	receive(&received, 1, outcomes)
	close(outcomes)
	var passed []bool
	for o := range outcomes {
		if o.server != 1 {
			t.Errorf("the server is %d", o.server)
		}
		passed = append(passed, o.passed)
	}
	if want := []bool{true, false, true}; !slices.Equal(passed, want) {
		t.Errorf("passed: %v, want %v", passed, want)
	}
}

// TestReportOfChecksums checks the checksums of a SYN: the sum over what they cover, including themselves, is zero.
func TestReportOfChecksums(t *testing.T) {
	frame := synFrame(fromStation, toStation, 1024, 80)
	ip, tcp := frame[ethernetHeader:ethernetHeader+ipv4Header], frame[ethernetHeader+ipv4Header:]
	if got := checksum(ip); got != 0 {
		t.Errorf("IPv4: %#x", got)
	}
	pseudo := slices.Concat(ip[12:20], []byte{0, protocolTCP}, binary.BigEndian.AppendUint16(nil, tcpHeader))
	if got := checksum(slices.Concat(pseudo, tcp)); got != 0 {
		t.Errorf("TCP: %#x", got)
	}
}

func TestReportOfBackgrounds(t *testing.T) {
	for _, c := range []struct {
		list string
		want []background
	}{
		{"100:0,5000:1000", []background{{100, 0}, {5000, 1000}}},
		{"10:5", []background{{10, 5}}},
		{"10:6", nil},
		{"100:0,50:0", nil},
		{"100", nil},
	} {
		got, err := backgroundsOf(c.list)
		if !slices.Equal(got, c.want) || (err == nil) != (c.want != nil) {
			t.Errorf("%s: %v, %v", c.list, got, err)
		}
	}
}
