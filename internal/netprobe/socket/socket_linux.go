// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package socket sets options of UDP sockets that only Linux has. `kubectl ko` links the packages that use it, and runs on other systems.
package socket

import (
	"errors"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// largest is the largest payload of a UDP datagram over IPv4.
const largest = 65507

// ForbidFragments makes the kernel refuse packets that are too large for the path (IP_MTU_DISCOVER, ip(7)). It returns the largest payload.
func ForbidFragments(conn *net.UDPConn) (payload int, err error) {
	level, discover, get := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_MTU
	if to, ok := conn.RemoteAddr().(*net.UDPAddr); ok && to.IP.To4() == nil {
		level, discover, get = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_MTU
	}
	mtu := 0
	err = control(conn, func(fd int) error {
		err := unix.SetsockoptInt(fd, level, discover, unix.IP_PMTUDISC_DO)
		if err == nil {
			mtu, err = unix.GetsockoptInt(fd, level, get)
		}
		return err
	})
	return min(mtu-Headers(conn), largest), err
}

// TooLarge reports whether an error is about a packet that is too large for the path.
func TooLarge(err error) bool { return errors.Is(err, unix.EMSGSIZE) }

// SendSegments makes one write of a UDP socket several packets of a size (UDP_SEGMENT, udp(7)).
func SendSegments(conn *net.UDPConn, size int) error {
	return set(conn, unix.IPPROTO_UDP, unix.UDP_SEGMENT, size)
}

// ReceiveSegments makes one read of a UDP socket return several packets (UDP_GRO, udp(7)).
func ReceiveSegments(conn *net.UDPConn) error { return set(conn, unix.IPPROTO_UDP, unix.UDP_GRO, 1) }

// Buffer sets the number of bytes that wait for this process, if it may (CAP_NET_ADMIN).
func Buffer(conn *net.UDPConn, size int) error {
	err := set(conn, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, size)
	if errors.Is(err, unix.EPERM) {
		return nil
	}
	return err
}

func set(conn syscall.Conn, level, option, value int) error {
	return control(conn, func(fd int) error { return unix.SetsockoptInt(fd, level, option, value) })
}

func control(conn syscall.Conn, f func(fd int) error) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	if controlErr := raw.Control(func(fd uintptr) { err = f(int(fd)) }); controlErr != nil {
		return controlErr
	}
	return os.NewSyscallError("setsockopt", err)
}
