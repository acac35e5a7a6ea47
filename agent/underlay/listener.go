// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"github.com/mdlayher/packet"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/internal/node/neighbour"
)

// listeners has one packet socket for each interface with a check in progress. The zero value is ready.
type listeners struct {
	mu     sync.Mutex
	byName map[string]*listener
}

// listener receives the answers of the hosts behind an interface, for all checks.
type listener struct {
	name string
	mac  net.HardwareAddr
	conn *packet.Conn
	raw  syscall.RawConn

	users    int // guarded by listeners.mu
	mu       sync.Mutex
	searches map[*search]struct{}
	err      error
}

// search is a check that waits for answers. answers has room for one answer for each wanted address.
type search struct {
	tag     int
	ignored []net.HardwareAddr
	wanted  map[netip.Addr]struct{}
	answers chan neighbour.Host
}

// open returns the listener of an interface. The caller calls close after it.
func (ls *listeners) open(name string) (*listener, error) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if l := ls.byName[name]; l != nil {
		l.users++
		return l, nil
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("find interface %s: %w", name, err)
	}
	conn, err := neighbour.Listen(link.Attrs().Index, unix.ETH_P_ALL)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", name, err)
	}
	raw, err := conn.SyscallConn()
	if err == nil {
		err = prepare(raw, link.Attrs().Index)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen on %s: %w", name, err), conn.Close())
	}
	l := &listener{name: name, mac: link.Attrs().HardwareAddr, conn: conn, raw: raw, users: 1, searches: map[*search]struct{}{}}
	if ls.byName == nil {
		ls.byName = map[string]*listener{}
	}
	ls.byName[name] = l
	go l.receive()
	return l, nil
}

// close ends the use of a listener. The last user closes its socket.
func (ls *listeners) close(l *listener) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if l.users--; l.users == 0 {
		delete(ls.byName, l.name)
		_ = l.conn.Close() // ends receive
	}
}

// prepare makes a socket receive multicast frames, and the tags that the kernel removes from frames (packet(7)).
func prepare(raw syscall.RawConn, index int) error {
	multicast := &unix.PacketMreq{Ifindex: int32(index), Type: unix.PACKET_MR_ALLMULTI} //nolint:gosec // an index of the kernel
	var failed error
	err := raw.Control(func(socket uintptr) {
		failed = errors.Join(
			unix.SetsockoptInt(int(socket), unix.SOL_PACKET, unix.PACKET_AUXDATA, 1),
			unix.SetsockoptPacketMreq(int(socket), unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, multicast))
	})
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("prepare a packet socket: %w", err)
	}
	return nil
}

// send sends a probe for an address.
func (l *listener) send(from neighbour.Host, tag int, address netip.Addr) error {
	frame, err := neighbour.Request(from, tag, address)
	if err == nil {
		err = neighbour.Send(l.conn, frame)
	}
	if err != nil {
		return fmt.Errorf("probe %s on %s: %w", address, l.name, err)
	}
	return nil
}

// receive passes answers to searches until the socket is closed.
func (l *listener) receive() {
	frame, control := make([]byte, 256), make([]byte, 128)
	for {
		var length, controlLength int
		var from unix.Sockaddr
		var err error
		if closed := l.raw.Read(func(socket uintptr) bool {
			length, controlLength, _, from, err = unix.Recvmsg(int(socket), frame, control, 0)
			return !errors.Is(err, unix.EAGAIN)
		}); closed != nil {
			return
		}
		switch {
		case errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENETDOWN): // ENETDOWN is reported once
			continue
		case err != nil:
			l.fail(fmt.Errorf("receive on %s: %w", l.name, err))
			return
		}
		if link, ok := from.(*unix.SockaddrLinklayer); ok && link.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		if a, ok := neighbour.Parse(frame[:length], tagOf(control[:controlLength])); ok {
			l.dispatch(a)
		}
	}
}

func (l *listener) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
}

// failed returns the error after which the listener receives nothing.
func (l *listener) failed() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// dispatch passes an answer to each search that wants it, once.
func (l *listener) dispatch(a neighbour.Answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for s := range l.searches {
		if _, wanted := s.wanted[a.Address]; !wanted || s.tag != a.Tag || s.ignores(a.MAC) {
			continue
		}
		delete(s.wanted, a.Address)
		s.answers <- a.Host
	}
}

func (s *search) ignores(mac net.HardwareAddr) bool {
	for _, ignored := range s.ignored {
		if bytes.Equal(ignored, mac) {
			return true
		}
	}
	return false
}

// search returns a channel with the hosts that answer for the addresses in a VLAN, and a function that ends the search. Answers of the interface
// itself and of own are ignored.
func (l *listener) search(tag int, own net.HardwareAddr, addresses []netip.Addr) (answers <-chan neighbour.Host, stop func()) {
	s := &search{tag: tag, ignored: []net.HardwareAddr{l.mac, own}, wanted: map[netip.Addr]struct{}{}, answers: make(chan neighbour.Host, len(addresses))}
	for _, address := range addresses {
		s.wanted[address] = struct{}{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.searches[s] = struct{}{}
	return s.answers, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.searches, s)
	}
}

// tagOf returns the VLAN tag that the kernel has removed from a frame (packet(7), PACKET_AUXDATA); 0 if there was none.
func tagOf(control []byte) int {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return 0
	}
	for _, m := range messages {
		// struct tpacket_auxdata: status, lengths and offsets of 16 bytes, then the tag.
		if m.Header.Level == unix.SOL_PACKET && m.Header.Type == unix.PACKET_AUXDATA && len(m.Data) >= 18 &&
			binary.NativeEndian.Uint32(m.Data)&unix.TP_STATUS_VLAN_VALID != 0 {
			return int(binary.NativeEndian.Uint16(m.Data[16:]) & 0xfff)
		}
	}
	return 0
}
