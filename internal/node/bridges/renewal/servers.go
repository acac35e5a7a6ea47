// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package renewal

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/internal/node/bridges/kernel"
)

// answerTime is for a DHCP server to answer a request, which is repeated once and then has twice the time.
const answerTime = 500 * time.Millisecond

// source is a raw socket that receives for all addresses, and sends from one.
type source struct {
	net.PacketConn
	from *net.UDPAddr
}

// WriteTo sends a DHCP message in a broadcast frame.
func (s source) WriteTo(message []byte, to net.Addr) (int, error) {
	raw, ok := s.PacketConn.(*nclient4.BroadcastRawUDPConn)
	if !ok {
		return 0, fmt.Errorf("a socket of type %T", s.PacketConn)
	}
	return nclient4.NewBroadcastUDPConn(raw.PacketConn, s.from).WriteTo(message, to)
}

// askServers asks all DHCP servers that an interface reaches to renew the address, in the state REBINDING (RFC 2131, section 4.4.5). It returns the answer that one
// of them gives. A server that refuses is an error like one that does not answer: any host of the network can send a refusal.
func (r Renewal) askServers(ctx context.Context, link netlink.Link) (Renewal, error) {
	socket, err := nclient4.NewRawUDPConn(link.Attrs().Name, nclient4.ClientPort)
	if err != nil {
		return r, fmt.Errorf("open a socket for DHCP on %s: %w", link.Attrs().Name, err)
	}
	from := &net.UDPAddr{IP: r.Address.AsSlice(), Port: nclient4.ClientPort}
	client, err := nclient4.NewWithConn(source{socket, from}, link.Attrs().HardwareAddr, nclient4.WithTimeout(answerTime), nclient4.WithRetry(2))
	if err != nil {
		return r, errors.Join(fmt.Errorf("ask DHCP servers: %w", err), socket.Close())
	}
	defer client.Close()
	modifiers := []dhcpv4.Modifier{
		dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest), dhcpv4.WithHwAddr(link.Attrs().HardwareAddr), dhcpv4.WithClientIP(r.Address.AsSlice()),
	}
	if len(r.ClientID) > 0 {
		modifiers = append(modifiers, dhcpv4.WithOption(dhcpv4.OptClientIdentifier(r.ClientID)))
	}
	request, err := dhcpv4.New(modifiers...)
	if err != nil {
		return r, fmt.Errorf("make a request for DHCP servers: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 4*answerTime) // the client waits again after each message that is no answer
	defer cancel()
	answer, err := client.SendAndRead(ctx, nclient4.DefaultServers, request, func(m *dhcpv4.DHCPv4) bool {
		return m.MessageType() == dhcpv4.MessageTypeAck && kernel.AddrOf(m.YourIPAddr) == r.Address && m.IPAddressLeaseTime(0) > 0
	})
	if err != nil {
		return r, fmt.Errorf("no DHCP server renews the address %s: %w", r.Address, err)
	}
	r.Duration, r.At = min(answer.IPAddressLeaseTime(0), longest), kernel.SinceBoot()
	return r, nil
}
