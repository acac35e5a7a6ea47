// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/internal/limits"
)

// Shaping is how the kernel limits the packets at the host's end of a link, with its counts of packets since the limit began. The counts have 32 bits.
type Shaping struct {
	// Qdisc is the kind of the qdisc of packets to the container, such as htb.
	Qdisc string
	// ToDropped packets to the container were dropped, and ToDelayed is how often packets waited.
	ToDropped, ToDelayed uint32
	// FromDropped packets from the container were dropped by policing.
	FromDropped uint32
}

// Shapings returns the state of all links to containers, by the name of the host's end.
func Shapings() (map[string]Shaping, error) {
	links, err := HostLinks()
	if err != nil {
		return nil, err
	}
	names := make(map[int]string, len(links))
	shapings := make(map[string]Shaping, len(links))
	for name, link := range links {
		names[link.Index] = name
		shapings[name] = Shaping{}
	}
	qdiscs, err := netlink.QdiscList(nil)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) { // the next dump has what a change has hidden
		return nil, fmt.Errorf("list qdiscs: %w", err)
	}
	for _, qdisc := range qdiscs {
		attrs := qdisc.Attrs()
		name, ours := names[attrs.LinkIndex]
		if !ours {
			continue
		}
		s := shapings[name]
		var queue netlink.GnetStatsQueue
		if attrs.Statistics != nil && attrs.Statistics.Queue != nil {
			queue = *attrs.Statistics.Queue
		}
		switch attrs.Parent {
		case netlink.HANDLE_ROOT:
			s.Qdisc, s.ToDropped, s.ToDelayed = qdisc.Type(), queue.Drops, queue.Overlimits
		case netlink.HANDLE_INGRESS:
			s.FromDropped = queue.Drops
		}
		shapings[name] = s
	}
	return shapings, nil
}

// Delay makes the netem of the qdisc of packets to a container exactly this. Open vSwitch (3.5) sets it only when it makes the qdisc, and ignores changes of the row.
// Without such a qdisc it does nothing: Open vSwitch makes it.
func Delay(hostName string, n limits.Netem) error {
	link, err := find(hostName)
	if link == nil {
		return err
	}
	qdiscs, err := netlink.QdiscList(link)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return unlessGone(fmt.Errorf("list the qdiscs of %s: %w", hostName, err))
	}
	for _, qdisc := range qdiscs {
		have, is := qdisc.(*netlink.Netem)
		if !is || have.Parent != netlink.HANDLE_ROOT {
			continue
		}
		want := netlink.NewNetem(netlink.QdiscAttrs{LinkIndex: have.LinkIndex, Handle: have.Handle, Parent: have.Parent}, netem(n))
		if near(have.Latency, want.Latency) && near(have.Jitter, want.Jitter) && near(have.Loss, want.Loss) && have.Limit == want.Limit {
			return nil
		}
		if err := netlink.QdiscChange(want); err != nil {
			return unlessGone(fmt.Errorf("change the netem of %s: %w", hostName, err))
		}
	}
	return nil
}

// netem returns the attributes of a qdisc. The package converts a jitter only with a latency.
func netem(n limits.Netem) netlink.NetemQdiscAttrs {
	attrs := netlink.NetemQdiscAttrs{
		Latency: uint32(n.Latency.Microseconds()), Jitter: uint32(n.Jitter.Microseconds()), Limit: uint32(n.Packets), Loss: float32(n.Loss), //nolint:gosec // up to ten seconds, and MaxDelayed packets
	}
	if attrs.Jitter > 0 {
		attrs.Latency = max(attrs.Latency, 1)
	}
	return attrs
}

// near reports whether two values differ by rounding only.
func near(a, b uint32) bool { return max(a, b)-min(a, b) <= max(a, b)/1000+16 }

// Polices reports whether the kernel has a filter for packets from a container; true if the link does not exist.
func Polices(hostName string) (bool, error) {
	link, err := find(hostName)
	if link == nil {
		return err == nil, err
	}
	filters, err := netlink.FilterList(link, netlink.MakeHandle(0xffff, 0))
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		if unlessGone(err) == nil {
			return true, nil
		}
		return false, fmt.Errorf("list filters of link %s: %w", hostName, err)
	}
	return len(filters) > 0, nil
}
