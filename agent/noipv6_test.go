// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/agent/host"
	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipfamily"
)

type seccompNotification struct {
	id         uint64
	pid, flags uint32
	number     int32
	arch       uint32
	pointer    uint64
	args       [6]uint64
}

type seccompAnswer struct {
	id    uint64
	value int64
	err   int32
	flags uint32
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

// nodeWithoutIPv6 returns an IPv4 node whose agent runs on a simulated kernel without IPv6.
func nodeWithoutIPv6(t *testing.T) *node {
	t.Helper()
	n := newNode(t)
	n.families = 1
	n.register()
	n.allocate()
	const parameters = "/proc/sys/net/ipv6"
	must(t, unix.Mount("none", parameters, "tmpfs", unix.MS_RDONLY, ""))
	t.Cleanup(func() { must(t, unix.Unmount(parameters, 0)) })
	t.Setenv(envWithoutIPv6, "1")
	n.startAgent()
	n.waitReady()
	return n
}

func TestANodeWithoutIPv6ServesIPv4(t *testing.T) {
	n := nodeWithoutIPv6(t)
	n.router()
	wantRoutes(n, true, "10.16.0.0/16")
	first, second := n.sandbox(n.pod("first", 10), newID()), n.sandbox(n.pod("second", 11), newID())
	for _, c := range []*container{first, second} {
		c.mustAdd()
		must(t, c.check())
	}
	if from := exchange(t, first.ns, second.ns, addressesOf(11)[0], "hello"); from != addressesOf(10)[0] {
		t.Errorf("a pod is seen as %s", from)
	}
	if from := exchange(t, nil, first.ns, addressesOf(10)[0], "hello"); from != nodeIPs[0].Addr() {
		t.Errorf("the node is seen as %s", from)
	}
	tenant := n.tenant("tenant", 12)
	exchangeAt(t, nil, tenant.ns, netip.AddrPortFrom(addressesOf(12)[0], probePort), "a probe")
	n.change("ovn-default", func(s *v1.SubnetSpec) { s.CIDRBlock = "10.16.0.0/15" })
	wantRoutes(n, true, "10.16.0.0/15")
	for _, c := range []*container{first, second} {
		c.mustDel()
	}
}

func TestANodeWithoutIPv6SaysThatItIsMissing(t *testing.T) {
	const missing = "the kernel of this node has no IPv6"
	n := nodeWithoutIPv6(t)
	n.families = 2
	n.change("ovn-default", func(s *v1.SubnetSpec) { s.CIDRBlock, s.Gateway = ipfamily.Join(podCIDRs), ipfamily.Join(podGWs) })
	pod := n.sandbox(n.pod("pod", 10), newID())
	if _, err := pod.add(); err == nil || !strings.Contains(err.Error(), missing) {
		t.Errorf("a pod with an address of IPv6: %v", err)
	}
	pod.mustDel()
	n.allocate()
	n.eventually("the node's condition names IPv6", func() bool { return strings.Contains(n.readyz(), missing) })
}

// readyz returns the reason why the agent is not ready.
func (n *node) readyz() string {
	answer, err := http.Get("http://" + healthPort + "/readyz?verbose")
	if err != nil {
		return ""
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	return string(text)
}

// Even if an administrator disables IPv6 on all interfaces, the interfaces of the overlay have IPv6 if the cluster does.
func TestANodeThatHasIPv6DisabledServesBothFamilies(t *testing.T) {
	const all = "/proc/sys/net/ipv6/conf/all/disable_ipv6"
	n := newNode(t)
	n.register()
	n.allocate()
	t.Cleanup(func() { must(t, errors.Join(os.WriteFile(all, []byte("0"), 0o644), connectIPv6())) })
	must(t, os.WriteFile(all, []byte("1"), 0o644))
	object := &corev1.Node{}
	must(t, n.api.Get(t.Context(), client.ObjectKey{Name: nodeName}, object))
	object.Status.Addresses = object.Status.Addresses[:1]
	must(t, n.api.Status().Update(t.Context(), object))
	n.startAgent()
	n.waitReady()
	n.router()
	first, second := n.sandbox(n.pod("first", 10), newID()), n.sandbox(n.pod("second", 11), newID())
	for _, c := range []*container{first, second} {
		c.mustAdd()
		t.Cleanup(c.mustDel)
		must(t, c.check())
	}
	for i, address := range addressesOf(11) {
		if from := exchange(t, first.ns, second.ns, address, "hello"); from != addressesOf(10)[i] {
			t.Errorf("a pod is seen as %s", from)
		}
		exchange(t, nil, second.ns, address, "hello")
	}
	must(t, os.WriteFile(all, []byte("1"), 0o644)) // again, now on all existing interfaces
	n.eventually("ovn0 has its address and its route again", func() bool {
		return hasAddress(host.JoinInterface, "fd00:100:64::2/112") && route(n, "fd00:10:16::/112") != nil
	})
	exchange(t, nil, second.ns, addressesOf(11)[1], "hello")
}
