// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"sync"

	"golang.org/x/sys/unix"
)

// noSignatures returns why the kernel cannot sign TCP segments (RFC 2385); empty if it can. GoBGP only logs this, and a passive session would exist
// without a password.
var noSignatures = sync.OnceValue(func() string {
	const reason = "the kernel of the node has no TCP MD5 signatures, so passwords cannot be used: "
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return reason + err.Error()
	}
	defer func() { _ = unix.Close(fd) }()
	signature := &unix.TCPMD5Sig{Keylen: 1}
	signature.Addr.Family = unix.AF_INET
	copy(signature.Addr.Data[2:], []byte{192, 0, 2, 1})
	signature.Key[0] = 'k'
	if err := unix.SetsockoptTCPMD5Sig(fd, unix.IPPROTO_TCP, unix.TCP_MD5SIG, signature); err != nil {
		return reason + err.Error()
	}
	return ""
})
