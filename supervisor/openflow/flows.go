// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// Numbers of OpenFlow 1.3 (openflow-spec-v1.3.5, sections 7.2.3 and 7.3.5.2).
const (
	multipartFlow   = 1
	multipartGroups = 7 // descriptions
	allTables       = 0xff
	anyPort         = 0xffffffff // also any group

	matchOXM     = 1
	classBasic   = 0x8000
	oxmEtherType = 5
	oxmProtocol  = 10
	oxmIPv4      = 11 // source; the destination is the next one
	oxmTCPPort   = 14 // destination; UDP and SCTP follow at intervals of two
	oxmIPv6      = 26

	etherTypeIPv4 = 0x0800
	etherTypeIPv6 = 0x86dd

	flowStatsSize = 48
	matchHeader   = 4

	writeActions, applyActions = 3, 4
	instructionHeader          = 8
	actionHeader               = 4
	actionGroup                = 22
	actionVendor               = 0xffff
	groupSize                  = 8

	nicira   = 0x2320
	niciraCT = 35
)

// portFields are the fields of destination ports by IP protocol.
var portFields = map[uint8]uint8{6: oxmTCPPort, 17: oxmTCPPort + 2, 132: oxmTCPPort + 4}

// Filter selects the flows whose match has these fields with these values, and these prefixes. Prefixes are of one family; at least one is valid.
type Filter struct {
	Source, Destination netip.Prefix
	// Protocol is the number of an IP protocol with ports, and Port a destination port; 0 for any.
	Protocol uint8
	Port     uint16
}

// Translates reports whether the bridge has a flow that the filter selects and that translates to an address: it has the address in an action ct, or in a group that its
// actions name: a load balancer of OVN has its endpoints in a group. Other actions can have the address, too, such as those of ICMP errors. Addresses are not searched for with
// the structure of ct and of groups, so that a number in them can be taken for an IPv4 address.
func (c *Conn) Translates(f Filter, to netip.Addr) (bool, error) {
	request := []byte{allTables, 0, 0, 0}
	request = binary.BigEndian.AppendUint32(request, anyPort)
	request = binary.BigEndian.AppendUint32(request, anyPort)
	request = append(request, make([]byte, 4+8+8)...) // padding, and no cookie
	found, groups := false, map[uint32]bool{}
	err := c.multipart(multipartFlow, append(request, f.match()...), func(entries []byte) error {
		has, err := f.selects(entries, to, groups)
		found = found || has
		return err
	})
	if err != nil {
		return false, fmt.Errorf("read flows: %w", err)
	}
	if found || len(groups) == 0 {
		return found, nil
	}
	if c.groups == nil {
		if c.groups, err = c.readGroups(); err != nil {
			return false, fmt.Errorf("read groups: %w", err)
		}
	}
	for id := range groups {
		// The bridge may have a group since the groups were read.
		if buckets, known := c.groups[id]; !known || bytes.Contains(buckets, to.AsSlice()) {
			return true, nil
		}
	}
	return false, nil
}

// readGroups returns the buckets of all groups.
func (c *Conn) readGroups() (map[uint32][]byte, error) {
	groups := map[uint32][]byte{}
	err := c.multipart(multipartGroups, nil, func(entries []byte) error {
		for len(entries) > 0 {
			if len(entries) < groupSize {
				return fmt.Errorf("a group has %d bytes", len(entries))
			}
			length := int(binary.BigEndian.Uint16(entries))
			if length < groupSize || length > len(entries) {
				return fmt.Errorf("a group has length %d of %d", length, len(entries))
			}
			id := binary.BigEndian.Uint32(entries[4:])
			groups[id] = append(groups[id], entries[groupSize:length]...)
			entries = entries[length:]
		}
		return nil
	})
	return groups, err
}

// selects reports whether one of the flows of a reply matches exactly the prefixes, and has an address in an action ct. It adds the groups in the actions of these flows to
// groups. The bridge also returns flows of longer prefixes.
func (f Filter) selects(entries []byte, address netip.Addr, groups map[uint32]bool) (bool, error) {
	found := false
	for len(entries) > 0 {
		if len(entries) < flowStatsSize+matchHeader {
			return false, fmt.Errorf("a flow has %d bytes", len(entries))
		}
		length, match := int(binary.BigEndian.Uint16(entries)), int(binary.BigEndian.Uint16(entries[flowStatsSize+2:]))
		padded := (match + 7) / 8 * 8
		if match < matchHeader || length < flowStatsSize+padded || length > len(entries) {
			return false, fmt.Errorf("a flow has length %d of %d, and a match of %d", length, len(entries), match)
		}
		if f.exact(entries[flowStatsSize+matchHeader : flowStatsSize+match]) {
			eachAction(entries[flowStatsSize+padded:length], func(kind uint16, body []byte) {
				switch {
				case kind == actionGroup:
					groups[binary.BigEndian.Uint32(body)] = true
				case isCT(kind, body) && bytes.Contains(body, address.AsSlice()):
					found = true
				}
			})
		}
		entries = entries[length:]
	}
	return found, nil
}

// exact reports whether the OXM fields of a flow have the prefixes of the filter. A prefix of 0 bits is the absence of the field.
func (f Filter) exact(fields []byte) bool {
	if slices.ContainsFunc(f.prefixes(), func(field []byte) bool { return !bytes.Contains(fields, field) }) {
		return false
	}
	first := f.firstField()
	return (!isAll(f.Source) || !hasField(fields, first)) && (!isAll(f.Destination) || !hasField(fields, first+1))
}

func isAll(p netip.Prefix) bool { return p.IsValid() && p.Bits() == 0 }

// hasField reports whether a match has an OXM field of the basic class, with or without a mask.
func hasField(fields []byte, field uint8) bool {
	const header = 4
	for len(fields) >= header {
		if binary.BigEndian.Uint16(fields) == classBasic && fields[2]>>1 == field {
			return true
		}
		fields = fields[min(header+int(fields[3]), len(fields)):]
	}
	return false
}

// isCT reports whether an action sends packets through connection tracking (NXAST_CT in ovs/ofp-actions). Its translation is a part of it.
func isCT(kind uint16, body []byte) bool {
	return kind == actionVendor && len(body) >= 6 && binary.BigEndian.Uint32(body) == nicira && binary.BigEndian.Uint16(body[4:]) == niciraCT
}

// eachAction calls f with the type and the body of each action of instructions. A body has 4 bytes at least.
func eachAction(instructions []byte, f func(kind uint16, body []byte)) {
	for len(instructions) >= instructionHeader {
		kind, length := binary.BigEndian.Uint16(instructions), int(binary.BigEndian.Uint16(instructions[2:]))
		if length < instructionHeader || length > len(instructions) {
			return
		}
		if kind == applyActions || kind == writeActions {
			for actions := instructions[instructionHeader:length]; len(actions) >= actionHeader; {
				size := int(binary.BigEndian.Uint16(actions[2:]))
				if size < 2*actionHeader || size > len(actions) {
					break
				}
				f(binary.BigEndian.Uint16(actions), actions[actionHeader:size])
				actions = actions[size:]
			}
		}
		instructions = instructions[length:]
	}
}

// match encodes the filter as a match of OXM fields.
func (f Filter) match() []byte {
	etherType := uint16(etherTypeIPv4)
	if f.is6() {
		etherType = etherTypeIPv6
	}
	fields := oxm(oxmEtherType, binary.BigEndian.AppendUint16(nil, etherType), nil)
	if f.Protocol != 0 {
		fields = append(fields, oxm(oxmProtocol, []byte{f.Protocol}, nil)...)
	}
	fields = append(fields, slices.Concat(f.prefixes()...)...)
	if f.Port != 0 {
		fields = append(fields, oxm(portFields[f.Protocol], binary.BigEndian.AppendUint16(nil, f.Port), nil)...)
	}
	body := binary.BigEndian.AppendUint16(nil, matchOXM)
	body = binary.BigEndian.AppendUint16(body, uint16(matchHeader+len(fields))) //nolint:gosec // a few fields
	body = append(body, fields...)
	return append(body, make([]byte, (8-len(body)%8)%8)...)
}

func (f Filter) is6() bool {
	return f.Source.IsValid() && f.Source.Addr().Is6() || f.Destination.IsValid() && f.Destination.Addr().Is6()
}

// firstField is the OXM field of sources; the next one is of destinations.
func (f Filter) firstField() uint8 {
	if f.is6() {
		return oxmIPv6
	}
	return oxmIPv4
}

// prefixes encodes the prefixes as OXM fields.
func (f Filter) prefixes() [][]byte {
	first := f.firstField()
	var fields [][]byte
	for i, prefix := range []netip.Prefix{f.Source, f.Destination} {
		if !prefix.IsValid() || isAll(prefix) { // a flow of all addresses has no field
			continue
		}
		var mask []byte
		if !prefix.IsSingleIP() {
			mask = net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())
		}
		fields = append(fields, oxm(first+uint8(i), prefix.Masked().Addr().AsSlice(), mask))
	}
	return fields
}

func oxm(field uint8, value, mask []byte) []byte {
	has := uint8(0)
	if mask != nil {
		has = 1
	}
	header := binary.BigEndian.AppendUint16(nil, classBasic)
	header = append(header, field<<1|has, uint8(len(value)+len(mask))) //nolint:gosec // at most 32 bytes
	return append(append(header, value...), mask...)
}
