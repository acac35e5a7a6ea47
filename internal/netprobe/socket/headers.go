// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package socket

import "net"

// Headers is the number of bytes of the IP and the UDP header of packets to the other end of a connection.
func Headers(conn *net.UDPConn) int {
	const headerIPv4, headerIPv6, headerUDP = 20, 40, 8
	if to, ok := conn.RemoteAddr().(*net.UDPAddr); ok && to.IP.To4() == nil {
		return headerIPv6 + headerUDP
	}
	return headerIPv4 + headerUDP
}
