// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/kiln-net/kiln/hack/lab/fabric"
	"github.com/kiln-net/kiln/test/cluster"
)

// mirrorProgram sends and receives numbered datagrams.
//
//go:embed testdata/mirror.py
var mirrorProgram string

// mirrorPort is the port of the datagrams.
const mirrorPort = 9099

// mirrorCapture counts the copies of numbered datagrams that arrive at an interface of a machine, by the tag and the number.
type mirrorCapture struct {
	socket int
	done   sync.WaitGroup

	mu     sync.Mutex
	copies map[string]map[int]int
	others int // frames that are no datagrams of mirrorProgram
}

// captureMirror starts to capture at an interface. unwrap returns the copied frame in a captured one, or nil for other frames.
func captureMirror(machine, device string, unwrap func([]byte) []byte) *mirrorCapture {
	GinkgoHelper()
	c := &mirrorCapture{copies: map[string]map[int]int{}}
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		ns, err := netns.GetFromPath(fabric.NetnsPath(machine))
		if err == nil {
			defer ns.Close()
			err = netns.Set(ns)
		}
		if err == nil {
			c.socket, err = packetSocket(device)
		}
		failed <- err
	}()
	Expect(<-failed).To(Succeed())
	c.done.Go(func() { c.read(unwrap) })
	DeferCleanup(c.stop)
	return c
}

// packetSocket returns a socket that receives every frame of an interface of this thread's namespace.
func packetSocket(device string) (int, error) {
	link, err := net.InterfaceByName(device)
	if err != nil {
		return 0, fmt.Errorf("find %s: %w", device, err)
	}
	all := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL}) // in network byte order
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, int(all))
	if err != nil {
		return 0, fmt.Errorf("open a packet socket: %w", err)
	}
	wait := unix.NsecToTimeval(int64(100 * time.Millisecond))
	for _, err := range []error{
		unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 32<<20),
		unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait),
		unix.Bind(socket, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Index}),
	} {
		if err != nil {
			_ = unix.Close(socket)
			return 0, fmt.Errorf("prepare a packet socket: %w", err)
		}
	}
	return socket, nil
}

func (c *mirrorCapture) read(unwrap func([]byte) []byte) {
	buffer := make([]byte, 1<<16)
	for {
		n, from, err := unix.Recvfrom(c.socket, buffer, 0)
		switch err {
		case nil:
		case unix.EAGAIN, unix.EINTR, unix.ENETDOWN:
			continue
		default: // closed
			return
		}
		if link, ok := from.(*unix.SockaddrLinklayer); ok && link.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		frame := unwrap(buffer[:n])
		if frame == nil {
			continue
		}
		tag, number, is := numbered(frame)
		c.mu.Lock()
		if !is {
			c.others++
		} else {
			if c.copies[tag] == nil {
				c.copies[tag] = map[int]int{}
			}
			c.copies[tag][number]++
		}
		c.mu.Unlock()
	}
}

// stop ends the capture. A second call changes nothing.
func (c *mirrorCapture) stop() {
	if c.socket > 0 {
		_ = unix.Shutdown(c.socket, unix.SHUT_RDWR)
		_ = unix.Close(c.socket)
		c.done.Wait()
		c.socket = 0
	}
}

// of returns how many copies each number of a tag has.
func (c *mirrorCapture) of(tag string) map[int]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.copies[tag])
}

// count returns how many numbers of a tag have copies.
func (c *mirrorCapture) count(tag string) int { return len(c.of(tag)) }

// lost returns how many frames the socket has dropped, because this process was too slow.
func (c *mirrorCapture) lost() int {
	GinkgoHelper()
	s, err := unix.GetsockoptTpacketStats(c.socket, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	Expect(err).NotTo(HaveOccurred())
	return int(s.Drops)
}

// mostCopies is more than a packet has, unless copies are copied again: Open vSwitch copies a packet once more after each pass of connection tracking.
const mostCopies = 8

// expectAll expects each number below sent to have copies.
func (c *mirrorCapture) expectAll(ctx context.Context, tag string, sent int) {
	GinkgoHelper()
	Eventually(func() int { return c.count(tag) }).WithContext(ctx).WithTimeout(5*time.Second).Should(Equal(sent), "numbers of %s with a copy", tag)
	time.Sleep(200 * time.Millisecond) // a further copy would arrive with the first
	c.expectFew(tag)
	Expect(c.lost()).To(BeZero(), "frames that the capture has lost")
}

// expectFew expects no number to have more than mostCopies.
func (c *mirrorCapture) expectFew(tag string) {
	GinkgoHelper()
	numbers := map[int]int{}
	for number, n := range c.of(tag) {
		Expect(n).To(BeNumerically("<=", mostCopies), "copies of datagram %d of %s", number, tag)
		numbers[n]++
	}
	AddReportEntry(tag+": datagrams by their number of copies", numbers)
}

// expectRange expects the numbers with copies to have no gap, and numbers before the first and after the last: copies began and
// ended while datagrams were sent.
func (c *mirrorCapture) expectRange(tag string, sent int) {
	GinkgoHelper()
	copies := c.of(tag)
	numbers := slices.Sorted(maps.Keys(copies))
	Expect(numbers).NotTo(BeEmpty(), "copies of %s", tag)
	first, last := numbers[0], numbers[len(numbers)-1]
	AddReportEntry(tag, fmt.Sprintf("%d sent, copies of %d to %d", sent, first, last))
	Expect(first).To(BeNumerically(">", 0), "copies of %s before the annotation was set", tag)
	Expect(last).To(BeNumerically("<", sent-1), "copies of %s after the annotation was removed", tag)
	for n := first; n <= last; n++ {
		Expect(copies[n]).NotTo(BeZero(), "copies of datagram %d of %s, of %d to %d", n, tag, first, last)
	}
	c.expectFew(tag)
	Expect(c.lost()).To(BeZero(), "frames that the capture has lost")
}

// numbered returns the tag and the number of a datagram of mirrorProgram in an Ethernet frame. Other packets, such as ICMP errors that quote a datagram,
// are none.
func numbered(frame []byte) (tag string, number int, is bool) {
	if len(frame) < 14 {
		return "", 0, false
	}
	var udp []byte
	switch packet := frame[14:]; binary.BigEndian.Uint16(frame[12:]) {
	case unix.ETH_P_IP:
		if len(packet) >= 20 && packet[9] == unix.IPPROTO_UDP {
			udp = packet[int(packet[0]&15)*4:]
		}
	case unix.ETH_P_IPV6:
		if len(packet) >= 40 && packet[6] == unix.IPPROTO_UDP {
			udp = packet[40:]
		}
	}
	if len(udp) < 8 || binary.BigEndian.Uint16(udp[2:]) != mirrorPort {
		return "", 0, false
	}
	fields := strings.Fields(string(bytes.TrimRight(udp[8:], "\x00")))
	if len(fields) != 3 || fields[0] != "kiln-mirror" {
		return "", 0, false
	}
	number, err := strconv.Atoi(fields[2])
	return fields[1], number, err == nil
}

// asIs unwraps the frames of mirror0.
func asIs(frame []byte) []byte { return frame }

// Protocols of GRE (RFC 2784): bridged Ethernet, and ERSPAN version 1.
const (
	greEthernet = 0x6558
	greERSPAN   = 0x88be
)

// tunneled returns a function that unwraps copies in GRE with a key, or in ERSPAN with a session, over IPv4 or IPv6.
func tunneled(protocol uint16, key uint32) func([]byte) []byte {
	return func(frame []byte) []byte {
		gre := greOf(frame)
		if len(gre) < 4 || binary.BigEndian.Uint16(gre[2:]) != protocol {
			return nil
		}
		const checksum, withKey, sequence = 0x80, 0x20, 0x10
		rest, found := gre[4:], uint32(0)
		for _, flag := range []byte{checksum, withKey, sequence} { // in the order of their fields, of four bytes each
			if gre[0]&flag == 0 {
				continue
			}
			if len(rest) < 4 {
				return nil
			}
			if flag == withKey {
				found = binary.BigEndian.Uint32(rest)
			}
			rest = rest[4:]
		}
		if protocol == greERSPAN {
			if len(rest) < 8 {
				return nil
			}
			found, rest = uint32(binary.BigEndian.Uint16(rest[2:])&0x3ff), rest[8:]
		}
		if found != key {
			return nil
		}
		return rest
	}
}

// greOf returns the GRE packet in a frame, or nil.
func greOf(frame []byte) []byte {
	if len(frame) < 14 {
		return nil
	}
	switch packet := frame[14:]; binary.BigEndian.Uint16(frame[12:]) {
	case unix.ETH_P_IP:
		if len(packet) >= 20 && packet[9] == unix.IPPROTO_GRE {
			return packet[min(int(packet[0]&15)*4, len(packet)):]
		}
	case unix.ETH_P_IPV6:
		if len(packet) < 40 {
			return nil
		}
		next, rest := packet[6], packet[40:]
		if next == unix.IPPROTO_DSTOPTS && len(rest) >= 8 { // the kernel's limit of encapsulations
			next, rest = rest[0], rest[min(8+int(rest[1])*8, len(rest)):]
		}
		if next == unix.IPPROTO_GRE {
			return rest
		}
	}
	return nil
}

// mirrorFlow is a series of datagrams from a pod to an address.
type mirrorFlow struct {
	from *corev1.Pod
	to   netip.Addr
	tag  string
}

// mirrorFlows returns the flows from one pod to another in all families. Their tags begin with a name.
func mirrorFlows(name string, from, to *corev1.Pod) (flows []mirrorFlow) {
	for _, a := range cluster.PodAddrs(to) {
		family := map[bool]string{true: "ip4", false: "ip6"}[a.Is4()]
		flows = append(flows, mirrorFlow{from, a, fmt.Sprintf("%s-%s-%s-%s", name, from.Name, to.Name, family)})
	}
	return flows
}

// inMirrorPod runs a shell command with mirrorProgram as its first argument, in a pod.
func inMirrorPod(ctx context.Context, pod *corev1.Pod, command string, args ...string) string {
	GinkgoHelper()
	out, err := suite.Cluster.Exec(ctx, pod, append([]string{"sh", "-c", command, "sh", mirrorProgram}, args...)...)
	Expect(err).NotTo(HaveOccurred())
	return strings.TrimSpace(out)
}

// startSinks makes pods receive datagrams until endMirrorFlows.
func startSinks(ctx context.Context, pods ...*corev1.Pod) {
	GinkgoHelper()
	for _, pod := range pods {
		inMirrorPod(ctx, pod, `rm -f /tmp/mirror-stop; python3 -c "$1" sink "$2" >/tmp/received 2>&1 &`, strconv.Itoa(mirrorPort))
	}
	for _, pod := range pods {
		Eventually(func() string { return inMirrorPod(ctx, pod, `cat /proc/net/udp6`) }).WithContext(ctx).WithTimeout(20 * time.Second).
			Should(ContainSubstring(fmt.Sprintf(":%04X", mirrorPort)))
	}
}

// beginMirrorFlows sends datagrams in the background. Each flow has a file with the number that it has sent.
func beginMirrorFlows(ctx context.Context, perSecond int, flows ...mirrorFlow) {
	GinkgoHelper()
	for _, f := range flows {
		inMirrorPod(ctx, f.from, `python3 -c "$1" send "$2" "$3" "$4" "$5" 1000000 >"/tmp/sent-$4" 2>&1 &`,
			f.to.String(), strconv.Itoa(mirrorPort), f.tag, strconv.Itoa(perSecond))
	}
}

// mirrorBurst sends a number of datagrams in each flow, one flow after another.
func mirrorBurst(ctx context.Context, perSecond, count int, flows ...mirrorFlow) {
	GinkgoHelper()
	for _, f := range flows {
		sent := inMirrorPod(ctx, f.from, `python3 -c "$1" send "$2" "$3" "$4" "$5" "$6"`, f.to.String(), strconv.Itoa(mirrorPort), f.tag, strconv.Itoa(perSecond), strconv.Itoa(count))
		Expect(sent).To(Equal(strconv.Itoa(count)), f.tag)
	}
}

// endMirrorFlows stops flows and sinks in their pods. It returns how many datagrams each flow has sent, and how many arrived, by tag.
func endMirrorFlows(ctx context.Context, pods []*corev1.Pod, flows ...mirrorFlow) (sent, received map[string]int) {
	GinkgoHelper()
	sent, received = map[string]int{}, map[string]int{}
	for _, pod := range pods {
		inMirrorPod(ctx, pod, `touch /tmp/mirror-stop`)
	}
	for _, f := range flows {
		Eventually(func(g Gomega) {
			n, err := strconv.Atoi(inMirrorPod(ctx, f.from, `cat "/tmp/sent-$2"`, f.tag))
			g.Expect(err).NotTo(HaveOccurred())
			sent[f.tag] = n
		}).WithContext(ctx).WithTimeout(10 * time.Second).Should(Succeed())
	}
	for _, pod := range pods {
		Eventually(func() string { return inMirrorPod(ctx, pod, `cat /tmp/received`) }).WithContext(ctx).WithTimeout(10 * time.Second).Should(ContainSubstring("done"))
		for line := range strings.Lines(inMirrorPod(ctx, pod, `cat /tmp/received`)) {
			var tag string
			var n int
			if _, err := fmt.Sscan(line, &tag, &n); err == nil {
				received[tag] = n
			}
		}
	}
	return sent, received
}
