// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
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
	file *os.File
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
	answers chan Holder
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
	file, raw, err := packetSocket(link)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", name, err)
	}
	l := &listener{name: name, mac: link.Attrs().HardwareAddr, file: file, raw: raw, users: 1, searches: map[*search]struct{}{}}
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
		_ = l.file.Close() // ends receive
	}
}

// packetSocket returns a socket that receives ARP packets and neighbour advertisements of an interface before Open vSwitch does, also those in
// VLANs. It sends frames without passing Open vSwitch.
func packetSocket(link netlink.Link) (*os.File, syscall.RawConn, error) {
	instructions, err := filter()
	if err != nil {
		return nil, nil, err
	}
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open a packet socket: %w", err)
	}
	file := os.NewFile(uintptr(socket), link.Attrs().Name)
	multicast := &unix.PacketMreq{Ifindex: int32(link.Attrs().Index), Type: unix.PACKET_MR_ALLMULTI} //nolint:gosec // an index of the kernel
	program := &unix.SockFprog{Len: uint16(len(instructions)), Filter: &instructions[0]}             //nolint:gosec // 20
	err = errors.Join(
		unix.SetsockoptInt(socket, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1),
		unix.SetsockoptSockFprog(socket, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, program),
		unix.SetsockoptPacketMreq(socket, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, multicast),
		unix.Bind(socket, &unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_ALL), Ifindex: link.Attrs().Index}))
	raw, rawErr := file.SyscallConn()
	if err = errors.Join(err, rawErr); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("prepare a packet socket: %w", err), file.Close())
	}
	return file, raw, nil
}

// send sends a probe for an address.
func (l *listener) send(from sender, tag int, address netip.Addr) error {
	frame, err := probe(from, tag, address)
	if err != nil {
		return err
	}
	if writeErr := l.raw.Write(func(socket uintptr) bool {
		_, err = unix.Write(int(socket), frame)
		return !errors.Is(err, unix.EAGAIN)
	}); writeErr != nil {
		err = writeErr
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
		if a, ok := parse(frame[:length], tagOf(control[:controlLength])); ok {
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
func (l *listener) dispatch(a answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for s := range l.searches {
		if _, wanted := s.wanted[a.Address]; !wanted || s.tag != a.tag || s.ignores(a.MAC) {
			continue
		}
		delete(s.wanted, a.Address)
		s.answers <- a.Holder
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
func (l *listener) search(tag int, own net.HardwareAddr, addresses []netip.Addr) (answers <-chan Holder, stop func()) {
	s := &search{tag: tag, ignored: []net.HardwareAddr{l.mac, own}, wanted: map[netip.Addr]struct{}{}, answers: make(chan Holder, len(addresses))}
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
