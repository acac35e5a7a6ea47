// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cniserver_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/agent/agenttest"
	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/testing/must"
)

// mirrorMode writes the mode of the node's mirror to the OVNCluster.
func mirrorMode(n *agenttest.Node, mode v1alpha1.MirrorMode) {
	n.Helper()
	cluster := &v1alpha1.OVNCluster{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.OVNClusterName}}
	must.Succeed(n.TB, client.IgnoreAlreadyExists(n.API.Create(n.Context(), cluster)))
	must.Succeed(n.TB, n.API.Get(n.Context(), client.ObjectKeyFromObject(cluster), cluster))
	base := cluster.DeepCopy()
	cluster.Spec.Agent.Mirror = mode
	must.Succeed(n.TB, n.API.Patch(n.Context(), cluster, client.MergeFrom(base)))
}

// requestMirror sets the annotation of a pod; an empty value removes it.
func requestMirror(n *agenttest.Node, pod *corev1.Pod, value string) {
	n.Helper()
	base := pod.DeepCopy()
	pod.Annotations[v1.AnnotationMirror.Key()] = value
	if value == "" {
		delete(pod.Annotations, v1.AnnotationMirror.Key())
	}
	must.Succeed(n.TB, n.API.Patch(n.Context(), pod, client.MergeFrom(base)))
}

// mirrorIsUp reports whether mirror0 is up without an address.
func mirrorIsUp(n *agenttest.Node) bool {
	n.Helper()
	link, err := netlink.LinkByName("mirror0")
	if err != nil || link.Attrs().Flags&net.FlagUp == 0 {
		return false
	}
	addresses, err := netlinksafe.AddrList(link, netlink.FAMILY_ALL)
	return err == nil && len(addresses) == 0
}

// copies counts the frames that arrive at mirror0 with a text, until the test ends.
type copies struct {
	*agenttest.Node
	socket int
}

func openMirror(n *agenttest.Node) copies {
	n.Helper()
	n.Eventually("mirror0 is up", func() bool { return mirrorIsUp(n) })
	link := n.Link("mirror0")
	all := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL}) // in network byte order
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK, int(all))
	must.Succeed(n.TB, err)
	n.Cleanup(func() { _ = unix.Close(socket) })
	must.Succeed(n.TB, unix.Bind(socket, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Attrs().Index}))
	return copies{n, socket}
}

// of returns how many frames with a text have arrived since the last call.
func (c copies) of(text string) (count int) {
	buffer := make([]byte, 2048)
	for {
		size, from, err := unix.Recvfrom(c.socket, buffer, 0)
		if err != nil {
			return count
		}
		if link, ok := from.(*unix.SockaddrLinklayer); ok && link.Pkttype != unix.PACKET_OUTGOING && bytes.Contains(buffer[:size], []byte(text)) {
			count++
		}
	}
}

// say sends datagrams with a text from one container to an address of another. It returns an error if one does not arrive in time.
func say(from, to *agenttest.Container, family, times int, text string, patience time.Duration) (lost error) {
	from.Helper()
	address := netip.AddrPortFrom(splitAddrs(to.Pod.Annotations[v1.AnnotationIPAddress.Key()])[family], 9)
	var server *net.UDPConn
	var err error
	to.Do(func() error { server, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(address)); return err })
	defer server.Close()
	from.Do(func() error {
		connection, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(address))
		if err != nil {
			return err
		}
		defer connection.Close()
		for range times {
			if _, err := connection.Write([]byte(text)); err != nil {
				return err
			}
			must.Succeed(from.TB, server.SetReadDeadline(time.Now().Add(patience)))
			if _, lost = server.Read(make([]byte, 100)); lost != nil {
				return nil
			}
		}
		return nil
	})
	return lost
}

// wantCopies sends datagrams in both families until their copies are as many as wanted: a change of the mirror reaches ovs-vswitchd later than the
// database. From then on the number must be exact.
func (c copies) wantCopies(what string, from, to *agenttest.Container, each int) {
	c.Helper()
	const times = 20
	for family := range agenttest.PodCIDRs {
		text := fmt.Sprintf("%s/%d/%s", what, family, from.Pod.Name)
		c.Eventually(what, func() bool {
			if err := say(from, to, family, 1, text+"/probe", time.Second); err != nil {
				return false // ovs-vswitchd has just started
			}
			time.Sleep(20 * time.Millisecond) // ovs-vswitchd writes to mirror0 before the receiver's port, or after it
			return c.of(text+"/probe") == each
		})
		must.Succeed(c.TB, say(from, to, family, times, text+"/counted", agenttest.Patience))
		count := 0
		c.Eventually(what+": all copies", func() bool { count += c.of(text + "/counted"); return count >= times*each })
		time.Sleep(50 * time.Millisecond)
		if count += c.of(text + "/counted"); count != times*each {
			c.Errorf("%s, family %d: %d copies of %d packets, want %d each", what, family, count, times, each)
		}
	}
}

// TestPacketsOfPodsAreMirrored sends packets through Open vSwitch while the mirror, Open vSwitch and the agent change.
func TestPacketsOfPodsAreMirrored(t *testing.T) {
	n := agenttest.NewNode(t)
	n.Register()
	n.Allocate()
	mirrorMode(n, v1alpha1.MirrorSelected)
	n.StartAgent()
	n.WaitReady()
	at := openMirror(n)
	c, peer := n.Sandbox(n.Pod("mirrored", 50), agenttest.NewID()), n.Sandbox(n.Pod("peer", 51), agenttest.NewID())
	requestMirror(n, c.Pod, "true")
	for _, c := range []*agenttest.Container{c, peer} {
		c.MustAdd()
		t.Cleanup(c.MustDel)
	}
	if _, ids := c.Port(); ids["mirror"] != "true" {
		t.Errorf("the ADD has not recorded the annotation: %v", ids)
	}
	at.wantCopies("from a pod with the annotation", c, peer, 1)
	at.wantCopies("to a pod with the annotation", peer, c, 1)
	requestMirror(n, peer.Pod, "true")
	at.wantCopies("between two pods with the annotation", c, peer, 1)
	requestMirror(n, peer.Pod, "")
	requestMirror(n, c.Pod, "false")
	at.wantCopies("without the annotation, with flows that exist", c, peer, 0)
	requestMirror(n, c.Pod, "true")
	at.wantCopies("with the annotation again, with flows that exist", c, peer, 1)

	t.Run("no copy reaches the network stack of the node", func(t *testing.T) { sendToMirror(n.In(t), copies{n.In(t), at.socket}, c) })
	t.Run("while the agent is dead", func(t *testing.T) {
		n, at := n.In(t), copies{n, at.socket}
		n.Agent.Kill()
		at.wantCopies("without an agent", c, peer, 1)
		requestMirror(n, c.Pod, "false")
		requestMirror(n, peer.Pod, "true")
		n.StartAgent()
		n.WaitReady()
		n.Eventually("the changes are applied", func() bool {
			_, ids := c.Port()
			_, other := peer.Port()
			return ids["mirror"] == "" && other["mirror"] == "true"
		})
		at.wantCopies("after the agent has started", c, peer, 1)
		requestMirror(n, peer.Pod, "false")
		at.wantCopies("by the new agent", c, peer, 0)
		requestMirror(n, c.Pod, "true")
	})
	t.Run("another program deletes the mirror", func(t *testing.T) {
		n := n.In(t)
		n.VSCtl("clear", "Bridge", "br-int", "mirrors")
		at.wantCopies("a deleted mirror", c, peer, 1)
		n.Detach("mirror0")
		n.Eventually("mirror0 is made again", func() bool { return mirrorIsUp(n) })
		openMirror(n).wantCopies("a deleted port", c, peer, 1)
	})
	t.Run("ovs-vswitchd starts again", func(t *testing.T) {
		n := n.In(t)
		must.Succeed(t, n.VSwitchd.Signal(syscall.SIGTERM))
		_ = n.VSwitchd.Wait()
		n.StartVSwitchd()
		openMirror(n).wantCopies("after a start of ovs-vswitchd", c, peer, 1)
	})
	t.Run("modes", func(t *testing.T) {
		n := n.In(t)
		mirrorMode(n, v1alpha1.MirrorAll)
		requestMirror(n, c.Pod, "false")
		openMirror(n).wantCopies("all pods", c, peer, 1)
		mirrorMode(n, v1alpha1.MirrorSelected)
		openMirror(n).wantCopies("selected pods again", c, peer, 0)
		requestMirror(n, c.Pod, "true")
		openMirror(n).wantCopies("a pod of the selected", c, peer, 1)
		mirrorMode(n, v1alpha1.MirrorNone)
		n.Eventually("mirror0 is removed", func() bool {
			_, err := netlink.LinkByName("mirror0")
			var missing netlink.LinkNotFoundError
			return errors.As(err, &missing)
		})
		n.Eventually("an event names the field", func() bool { return warned(n, c.Pod.Name, "spec.agent.mirror of the OVNCluster is None") })
		requestMirror(n, peer.Pod, "true")
		n.Eventually("an event for a request that follows", func() bool { return warned(n, peer.Pod.Name, "spec.agent.mirror") })
		late := n.Pod("late", 52)
		requestMirror(n, late, "true")
		n.Added(late)
		n.Eventually("an event for a pod that follows", func() bool { return warned(n, late.Name, "spec.agent.mirror") })
	})
}

// sendToMirror sends frames from a container to the MAC address of mirror0, with datagrams to addresses of the node, as a hostile pod could. Their copies
// arrive at mirror0; a socket of the node must not receive them.
func sendToMirror(n *agenttest.Node, at copies, c *agenttest.Container) {
	n.Helper()
	link := n.Link("mirror0")
	if link.Attrs().RawFlags&unix.IFF_NOARP == 0 {
		n.Error("mirror0 answers ARP requests")
	}
	local, err := netlinksafe.AddrList(n.Link("ovn0"), netlink.FAMILY_ALL)
	must.Succeed(n.TB, err)
	pods := splitAddrs(c.Pod.Annotations[v1.AnnotationIPAddress.Key()])
	server, err := net.ListenUDP("udp", &net.UDPAddr{})
	must.Succeed(n.TB, err)
	defer server.Close()
	port := uint16(server.LocalAddr().(*net.UDPAddr).Port)
	for i, source := range pods {
		text := fmt.Sprint("to the node ", i)
		var target netip.Addr
		for _, a := range local {
			if to, ok := netip.AddrFromSlice(a.IP); ok && to.Unmap().Is4() == source.Is4() && !to.IsLinkLocalUnicast() {
				target = to.Unmap()
			}
		}
		frame := datagram(link.Attrs().HardwareAddr, netip.AddrPortFrom(source, 9), netip.AddrPortFrom(target, port), text)
		sendFrame(c, frame)
		n.Eventually("a copy to the node's MAC address is captured", func() bool { return at.of(text) == 1 })
		must.Succeed(n.TB, server.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
		if _, from, err := server.ReadFromUDP(make([]byte, 100)); err == nil {
			n.Errorf("a socket of the node received a copy of a packet from %v to %v", from, target)
		}
		if source.Is6() {
			continue // mirror0 has no IPv6
		}
		before := reassembled(n)
		text = "a fragment"
		sendFrame(c, firstFragment(datagram(link.Attrs().HardwareAddr, netip.AddrPortFrom(source, 9), netip.AddrPortFrom(target, port), text)))
		n.Eventually("a copy of a fragment is captured", func() bool { return at.of(text) == 1 })
		time.Sleep(100 * time.Millisecond)
		if now := reassembled(n); now != before {
			n.Errorf("the node put a copied fragment into its queue of fragments: ReasmReqds is %s, and was %s", now, before)
		}
	}
}

// sendFrame sends a frame from a container.
func sendFrame(c *agenttest.Container, frame []byte) {
	c.Do(func() error {
		device, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(socket) }()
		return unix.Sendto(socket, frame, 0, &unix.SockaddrLinklayer{Ifindex: device.Index})
	})
}

// firstFragment makes the first fragment of a packet from a frame with an IPv4 packet.
func firstFragment(frame []byte) []byte {
	header := frame[14:34]
	header[6] |= 0x20 // more fragments
	header[10], header[11] = 0, 0
	binary.BigEndian.PutUint16(header[10:], internetChecksum(header))
	return frame
}

// reassembled returns the number of IPv4 fragments that the node has tried to put together (RFC 4293, ipReasmReqds).
func reassembled(n *agenttest.Node) string {
	n.Helper()
	var rows [][]string
	for line := range strings.Lines(string(must.Value(os.ReadFile("/proc/self/net/snmp")))) {
		if fields := strings.Fields(line); fields[0] == "Ip:" {
			rows = append(rows, fields)
		}
	}
	return rows[1][slices.Index(rows[0], "ReasmReqds")]
}

// datagram returns a frame with a UDP datagram.
func datagram(to net.HardwareAddr, source, target netip.AddrPort, text string) []byte {
	length := uint16(8 + len(text))
	udp := binary.BigEndian.AppendUint16(nil, source.Port())
	udp = binary.BigEndian.AppendUint16(udp, target.Port())
	udp = append(binary.BigEndian.AppendUint16(udp, length), 0, 0)
	udp = append(udp, text...)
	pseudo := append(source.Addr().AsSlice(), target.Addr().AsSlice()...)
	pseudo = append(binary.BigEndian.AppendUint16(pseudo, length), 0, unix.IPPROTO_UDP)
	binary.BigEndian.PutUint16(udp[6:], internetChecksum(append(pseudo, udp...)))
	frame := append(slices.Clone(to), 2, 0, 0, 0, 0, 1)
	if source.Addr().Is6() {
		frame = append(frame, 0x86, 0xdd, 0x60, 0, 0, 0)
		frame = append(binary.BigEndian.AppendUint16(frame, length), unix.IPPROTO_UDP, 64)
		frame = append(append(frame, source.Addr().AsSlice()...), target.Addr().AsSlice()...)
		return append(frame, udp...)
	}
	header := append(binary.BigEndian.AppendUint16([]byte{0x45, 0}, 20+length), 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0)
	header = append(append(header, source.Addr().AsSlice()...), target.Addr().AsSlice()...)
	binary.BigEndian.PutUint16(header[10:], internetChecksum(header))
	return append(append(append(frame, 0x08, 0x00), header...), udp...)
}

// internetChecksum returns the checksum of RFC 1071.
func internetChecksum(data []byte) uint16 {
	var sum uint32
	for i, b := range data {
		sum += uint32(b) << (8 * (1 - i%2))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// warned reports whether an object has an event whose message contains a text.
func warned(n *agenttest.Node, name, text string) bool {
	n.Helper()
	var list eventsv1.EventList
	must.Succeed(n.TB, n.API.List(n.Context(), &list))
	for _, e := range list.Items {
		if e.Regarding.Name == name && strings.Contains(e.Note, text) {
			return true
		}
	}
	return false
}

// A network card of the name, for example Kube-OVN's --mirror-iface, is not taken over.
func TestMirror0OfAnotherProgram(t *testing.T) {
	n := agenttest.Serving(t)
	n.VSCtl("add-br", "br-other", "--", "set", "Bridge", "br-other", "datapath_type=netdev", "--", "add-port", "br-other", "mirror0", "--", "set", "Interface", "mirror0", "type=internal")
	t.Cleanup(func() { n.VSCtl("del-br", "br-other") })
	mirrorMode(n, v1alpha1.MirrorSelected)
	n.Eventually("an event on the node says what to do", func() bool { return warned(n, agenttest.NodeName, "ovs-vsctl del-port mirror0") })
	problems := func() float64 {
		if family := n.Metric("kiln_mirror_problems"); family != nil {
			return family.GetMetric()[0].GetGauge().GetValue()
		}
		return -1
	}
	n.Eventually("the problem is counted", func() bool { return problems() == 1 })
	n.VSCtl("del-port", "br-other", "mirror0")
	n.Eventually("mirror0 is made", func() bool { return mirrorIsUp(n) })
	n.Eventually("no problem is counted", func() bool { return problems() == 0 })
}
