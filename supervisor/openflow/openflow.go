// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package openflow reads and adds the meters of a bridge of Open vSwitch, and finds flows. It speaks OpenFlow 1.3, so that no program runs for each meter, for
// each collection of metrics, or for each address that moves.
package openflow

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
)

// Numbers of OpenFlow 1.3 (openflow-spec-v1.3.5, sections 7.1.1, 7.3.4.4 and 7.3.5.14).
const (
	version = 4

	typeHello            = 0
	typeError            = 1
	typeEchoRequest      = 2
	typeEchoReply        = 3
	typeMultipartRequest = 18
	typeMultipartReply   = 19
	typeBarrierRequest   = 20
	typeBarrierReply     = 21
	typeMeterMod         = 29

	multipartMeter = 9
	replyMore      = 1
	allMeters      = 0xffffffff

	flagKilobits, flagPackets, flagBurst, flagStatistics = 1, 2, 4, 8

	bandDrop = 1

	headerSize     = 8
	multipartSize  = headerSize + 8
	meterStatsSize = 40
	bandSize       = 16
)

// Conn is a connection to the management socket of a bridge. It is not for concurrent use.
type Conn struct {
	conn net.Conn
	xid  uint32
	// groups are the buckets of all groups, once a call of Translates needed them.
	groups map[uint32][]byte
}

// Dial connects to the management socket of a bridge, `<bridge>.mgmt` in Open vSwitch's run directory. Calls end with the deadline of ctx.
func Dial(ctx context.Context, socket string) (*Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		err = conn.SetDeadline(deadline)
	}
	c := &Conn{conn: conn}
	if err == nil {
		err = c.send(typeHello, 0, nil)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return c, nil
}

// Close closes the connection.
func (c *Conn) Close() error { return c.conn.Close() }

// Dropped returns the number of packets that each meter has dropped, by the number of the meter.
func (c *Conn) Dropped() (map[uint32]uint64, error) {
	dropped := map[uint32]uint64{}
	request := binary.BigEndian.AppendUint32(nil, allMeters)
	err := c.multipart(multipartMeter, append(request, 0, 0, 0, 0), func(entries []byte) error { return addDropped(dropped, entries) })
	if err != nil {
		return nil, fmt.Errorf("read the statistics of meters: %w", err)
	}
	return dropped, nil
}

// addDropped adds the entries of one reply.
func addDropped(dropped map[uint32]uint64, entries []byte) error {
	for len(entries) > 0 {
		if len(entries) < meterStatsSize {
			return fmt.Errorf("a meter's statistics have %d bytes", len(entries))
		}
		length := int(binary.BigEndian.Uint16(entries[4:]))
		if length < meterStatsSize || length > len(entries) || (length-meterStatsSize)%bandSize != 0 {
			return fmt.Errorf("a meter's statistics have length %d of %d", length, len(entries))
		}
		var packets uint64
		for band := entries[meterStatsSize:length]; len(band) > 0; band = band[bandSize:] {
			packets += binary.BigEndian.Uint64(band)
		}
		dropped[binary.BigEndian.Uint32(entries)] = packets
		entries = entries[length:]
	}
	return nil
}

// Meter drops packets beyond its rates.
type Meter struct {
	ID uint32
	// Packets: rates are in packets per second; otherwise in kilobits per second.
	Packets bool
	// Statistics requests counters.
	Statistics bool
	Bands      []Band
}

// Band is a limit of a meter. Burst is in packets or kilobits; 0 for the amount of one second.
type Band struct{ Rate, Burst uint32 }

// Add adds meters, and returns once the bridge has them.
func (c *Conn) Add(meters []Meter) error {
	for _, m := range meters {
		if err := c.send(typeMeterMod, c.next(), m.encode()); err != nil {
			return fmt.Errorf("add meter %d: %w", m.ID, err)
		}
	}
	xid, err := c.request(typeBarrierRequest, nil)
	if err == nil {
		_, err = c.await(typeBarrierReply, xid)
	}
	if err != nil {
		return fmt.Errorf("add meters: %w", err)
	}
	return nil
}

// encode returns the body of a message that adds the meter.
func (m Meter) encode() []byte {
	flags := uint16(flagKilobits)
	if m.Packets {
		flags = flagPackets
	}
	if m.Statistics {
		flags |= flagStatistics
	}
	var bands []byte
	for _, b := range m.Bands {
		if b.Burst > 0 {
			flags |= flagBurst
		}
		bands = binary.BigEndian.AppendUint16(bands, bandDrop)
		bands = binary.BigEndian.AppendUint16(bands, bandSize)
		bands = binary.BigEndian.AppendUint32(bands, b.Rate)
		bands = binary.BigEndian.AppendUint32(bands, b.Burst)
		bands = append(bands, 0, 0, 0, 0)
	}
	body := binary.BigEndian.AppendUint16([]byte{0, 0}, flags) // command 0 adds
	body = binary.BigEndian.AppendUint32(body, m.ID)
	return append(body, bands...)
}

func (c *Conn) next() uint32 {
	c.xid++
	return c.xid
}

// request sends a request and returns its number.
func (c *Conn) request(kind byte, body []byte) (uint32, error) {
	xid := c.next()
	return xid, c.send(kind, xid, body)
}

func (c *Conn) send(kind byte, xid uint32, body []byte) error {
	message := binary.BigEndian.AppendUint16([]byte{version, kind}, uint16(headerSize+len(body))) //nolint:gosec // a meter has few bands
	message = binary.BigEndian.AppendUint32(message, xid)
	_, err := c.conn.Write(append(message, body...))
	return err
}

// multipart sends a request and calls f with the entries of each reply.
func (c *Conn) multipart(kind uint16, body []byte, f func(entries []byte) error) error {
	request := binary.BigEndian.AppendUint16(nil, kind)
	request = append(request, 0, 0, 0, 0, 0, 0)
	xid, err := c.request(typeMultipartRequest, append(request, body...))
	if err != nil {
		return err
	}
	for more := true; more; {
		reply, err := c.await(typeMultipartReply, xid)
		if err != nil {
			return err
		}
		if len(reply) < multipartSize-headerSize {
			return fmt.Errorf("a reply has %d bytes", len(reply))
		}
		more = binary.BigEndian.Uint16(reply[2:])&replyMore != 0
		if err := f(reply[multipartSize-headerSize:]); err != nil {
			return err
		}
	}
	return nil
}

// await returns the body of the reply to a request. It skips notifications. An error of any request is returned.
func (c *Conn) await(kind byte, xid uint32) ([]byte, error) {
	for {
		var header [headerSize]byte
		if _, err := io.ReadFull(c.conn, header[:]); err != nil {
			return nil, err
		}
		length := int(binary.BigEndian.Uint16(header[2:]))
		if length < headerSize {
			return nil, fmt.Errorf("a message has length %d", length)
		}
		body := make([]byte, length-headerSize)
		if _, err := io.ReadFull(c.conn, body); err != nil {
			return nil, err
		}
		number := binary.BigEndian.Uint32(header[4:])
		switch header[1] {
		case typeError:
			return nil, fmt.Errorf("the bridge refuses request %d: error %x", number, body[:min(4, len(body))])
		case typeEchoRequest:
			if err := c.send(typeEchoReply, number, body); err != nil {
				return nil, err
			}
		case kind:
			if number == xid {
				return body, nil
			}
		}
	}
}
