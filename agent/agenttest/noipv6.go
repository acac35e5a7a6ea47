// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package agenttest

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/internal/testing/must"
)

// seccompNotification is struct seccomp_notif of seccomp_unotify(2).
type seccompNotification struct {
	id         uint64
	pid, flags uint32
	number     int32
	arch       uint32
	pointer    uint64
	args       [6]uint64
}

// seccompAnswer is struct seccomp_notif_resp of seccomp_unotify(2).
type seccompAnswer struct {
	id    uint64
	value int64
	err   int32
	flags uint32
}

// HideIPv6 makes the next agents run on a simulated kernel without IPv6, until the test ends.
func (n *Node) HideIPv6() {
	n.Helper()
	const parameters = "/proc/sys/net/ipv6"
	must.Succeed(n.TB, unix.Mount("none", parameters, "tmpfs", unix.MS_RDONLY, ""))
	n.Cleanup(func() { must.Succeed(n.TB, unix.Unmount(parameters, 0)) })
	n.Setenv(envWithoutIPv6, "1")
}

// withoutIPv6 simulates a kernel started with ipv6.disable=1 for this process and its children: sockets of the family cannot be created,
// and rtnetlink requests for it fail as on such a kernel.
func withoutIPv6() error {
	const number, family = 0, 16 // struct seccomp_data: nr, and the lower half of args[0]
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: number},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_SENDTO, Jt: 4},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_SOCKET, Jf: 2},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: family},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.AF_INET6, Jt: 2},
		{Code: unix.BPF_RET, K: unix.SECCOMP_RET_ALLOW},
		{Code: unix.BPF_RET, K: unix.SECCOMP_RET_USER_NOTIF},
		{Code: unix.BPF_RET, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EAFNOSUPPORT)},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	flags := unix.SECCOMP_FILTER_FLAG_TSYNC | unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH
	listener, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, uintptr(flags), uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return fmt.Errorf("filter calls of the kernel: %w", errno)
	}
	go answer(listener)
	return nil
}

// answer decides for each intercepted system call whether it fails.
func answer(listener uintptr) {
	runtime.LockOSThread()
	for {
		var asked seccompNotification
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, listener, unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&asked))); errno != 0 {
			continue // interrupted, or the calling process ended
		}
		reply := seccompAnswer{id: asked.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
		if refused := refusal(asked); refused != 0 {
			reply.flags, reply.err = 0, -int32(refused)
		}
		_, _, _ = unix.Syscall(unix.SYS_IOCTL, listener, unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&reply)))
	}
}

// refusal returns the error of such a kernel (rtnetlink_rcv_msg) for a request; 0 if the request does not concern IPv6. Dumps of
// addresses and routes fall back to all families there. Rules and neighbours have handlers for all families, which reject the missing
// one.
func refusal(asked seccompNotification) syscall.Errno {
	if _, err := os.Stat("/proc/self/task/" + strconv.Itoa(int(asked.pid))); err != nil || asked.args[2] <= unix.NLMSG_HDRLEN {
		return 0 // another process, or only a header
	}
	for option, want := range map[int]int{unix.SO_DOMAIN: unix.AF_NETLINK, unix.SO_PROTOCOL: unix.NETLINK_ROUTE} {
		if have, err := unix.GetsockoptInt(int(asked.args[0]), unix.SOL_SOCKET, option); err != nil || have != want {
			return 0
		}
	}
	memory, err := os.Open("/proc/self/mem")
	if err != nil {
		return 0
	}
	defer memory.Close()
	var message struct {
		unix.NlMsghdr
		Family byte
	}
	at := io.NewSectionReader(memory, int64(asked.args[1]), int64(asked.args[2]))
	if err := binary.Read(at, binary.NativeEndian, &message); err != nil || message.Family != unix.AF_INET6 {
		return 0
	}
	switch {
	case message.Type >= unix.RTM_NEWRULE && message.Type <= unix.RTM_GETRULE, message.Type == unix.RTM_NEWNEIGH, message.Type == unix.RTM_DELNEIGH:
		return unix.EAFNOSUPPORT
	case message.Flags&unix.NLM_F_DUMP == unix.NLM_F_DUMP:
		return 0
	}
	return unix.EOPNOTSUPP
}
