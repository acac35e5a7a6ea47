// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/kiln-net/kiln/internal/testing/must"
)

// reply is a reply to a multipart request, in hexadecimal.
func reply(kind uint16, xid uint32, entries ...[]byte) string {
	body := slices.Concat(entries...)
	message := binary.BigEndian.AppendUint16([]byte{version, typeMultipartReply}, uint16(multipartSize+len(body)))
	message = binary.BigEndian.AppendUint32(message, xid)
	message = binary.BigEndian.AppendUint16(message, kind)
	message = append(message, 0, 0, 0, 0, 0, 0)
	return hex.EncodeToString(append(message, body...))
}

// flow is an entry of a reply: a flow with the match of a filter.
func flow(f Filter, actions ...byte) []byte {
	match := f.match()
	instruction := append([]byte{0, applyActions, 0, byte(instructionHeader + len(actions)), 0, 0, 0, 0}, actions...)
	entry := binary.BigEndian.AppendUint16(nil, uint16(flowStatsSize+len(match)+len(instruction)))
	return slices.Concat(append(entry, make([]byte, flowStatsSize-2)...), match, instruction)
}

func group(id uint32, buckets ...byte) []byte {
	entry := binary.BigEndian.AppendUint16(nil, uint16(groupSize+len(buckets)))
	return append(binary.BigEndian.AppendUint32(append(entry, 0, 0), id), buckets...)
}

func TestFlowsThatTranslate(t *testing.T) {
	port := Filter{Destination: netip.MustParsePrefix("192.0.2.9/32"), Protocol: 17, Port: 53}
	every, some := Filter{Source: netip.MustParsePrefix("0.0.0.0/0")}, Filter{Source: netip.MustParsePrefix("10.0.0.0/24")}
	inside := []byte{10, 0, 0, 5}
	toInside := []byte{0xff, 0xff, 0, 16, 0, 0, 0x23, 0x20, 0, niciraCT, 0, 0, 10, 0, 0, 5}
	icmp := []byte{0xff, 0xff, 0, 16, 0, 0, 0x23, 0x20, 0, 20, 0, 0, 10, 0, 0, 5}
	toGroup := []byte{0, actionGroup, 0, 8, 0, 0, 0, 7}
	drop := flow(port)
	groups := func(entries ...[]byte) string { return reply(multipartGroups, 2, entries...) }
	for _, c := range []struct {
		name    string
		filter  Filter
		replies []string
		want    bool
		fails   bool
	}{
		{"no flows", port, []string{reply(multipartFlow, 1)}, false, false},
		{"a flow of an ACL", port, []string{reply(multipartFlow, 1, drop)}, false, false},
		{"a flow with the address", port, []string{reply(multipartFlow, 1, drop, flow(port, toInside...))}, true, false},
		{"a group with the address", port, []string{reply(multipartFlow, 1, flow(port, toGroup...)), groups(group(6), group(7, inside...))}, true, false},
		{"a group of another address", port, []string{reply(multipartFlow, 1, flow(port, toGroup...)), groups(group(6, inside...), group(7, 10, 0, 0, 6))}, false, false},
		{"a group that is not read yet", port, []string{reply(multipartFlow, 1, flow(port, toGroup...)), groups()}, true, false},
		{"a group that is cut off", port, []string{reply(multipartFlow, 1, flow(port, toGroup...)), groups([]byte{0, 16, 0, 0, 0, 0, 0, 7})}, false, true},
		{"all sources", every, []string{reply(multipartFlow, 1, flow(every, toInside...))}, true, false},
		{"an ICMP error from the address", every, []string{reply(multipartFlow, 1, flow(every, icmp...))}, false, false},
		{"some sources", every, []string{reply(multipartFlow, 1, flow(some, toInside...))}, false, false},
		{"a flow that is cut off", port, []string{reply(multipartFlow, 1, drop[:len(drop)-8])}, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			conn := must.Value(Dial(ctx, serve(t, c.replies...)))
			defer conn.Close()
			if got, err := conn.Translates(c.filter, netip.AddrFrom4([4]byte(inside))); got != c.want || (err != nil) != c.fails {
				t.Errorf("%t, %v", got, err)
			}
		})
	}
}
