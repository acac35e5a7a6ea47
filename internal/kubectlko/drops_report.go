// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kiln-net/kiln/internal/trace"
)

const (
	// maxDrops bounds the connections of a report, and shownDrops the rows of its table.
	maxDrops, shownDrops = 1000, 100
)

// DropsReport is the output of `kubectl ko drops -o json`.
type DropsReport struct {
	// Drops are dropped connections, ordered by the number of packets, largest first. Connections between the same ends to the same port are one.
	Drops []Drop `json:"drops"`
	// MorePackets is the number of dropped packets of connections beyond the first 1,000. Not all of them need to concern the target.
	MorePackets int `json:"morePackets,omitempty"`
	// Unread are missing permissions, without which addresses have no names.
	Unread []string `json:"unread,omitempty"`
}

// Drop is a connection whose packets are dropped.
type Drop struct {
	// First and Last are the times of packets, by the clock of the node.
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	// Packets is the number of logged packets; more may have been dropped.
	Packets int     `json:"packets"`
	Node    string  `json:"node"`
	From    DropEnd `json:"from"`
	To      DropEnd `json:"to"`
	// Protocol is tcp, udp, sctp, icmp, igmp, or the number of another one.
	Protocol string `json:"protocol"`
	// Port is the destination port; 0 without one, and for fragments other than the first.
	Port uint16 `json:"port,omitempty"`
	// ICMPType is the type of ICMP packets.
	ICMPType *uint8 `json:"icmpType,omitempty"`
	// DecidedBy is the object that drops the packets; several if the log does not say which.
	DecidedBy []trace.Object `json:"decidedBy"`
}

// DropEnd is an end of a connection.
type DropEnd struct {
	Address netip.Addr `json:"address"`
	// Object is the pod, virtual machine, node or Service with the address.
	Object *trace.Object `json:"object,omitempty"`
	// Unsure: the object is in another VPC than the packet, so that it has the address only if routes lead there.
	Unsure bool `json:"unsure,omitempty"`
}

func newEnd(e end) DropEnd {
	d := DropEnd{Address: e.Address, Unsure: e.Name != "" && !e.sure}
	if e.Name != "" {
		o := e.Object
		d.Object = &o
	}
	return d
}

// String returns the name and the address.
func (e DropEnd) String() string {
	if e.Object == nil {
		return e.Address.String()
	}
	name := strings.ToLower(e.Object.Kind[:1]) + e.Object.Kind[1:]
	if e.Object.Kind == "Service" {
		name = e.Object.Kind
	}
	name += strings.TrimPrefix(e.Object.String(), e.Object.Kind)
	if e.Unsure {
		return fmt.Sprintf("%s (perhaps %s)", e.Address, name)
	}
	return fmt.Sprintf("%s (%s)", name, e.Address)
}

func newDrop(p loggedPacket, by []trace.Object) Drop {
	d := Drop{First: p.Time, Last: p.Time, Packets: 1, Node: p.node, Protocol: p.Protocol, Port: p.DestinationPort, DecidedBy: by}
	if p.Protocol == trace.ICMP {
		d.ICMPType = &p.Type
	}
	return d
}

// service returns the protocol and the port.
func (d *Drop) service() string {
	switch {
	case d.ICMPType != nil:
		return fmt.Sprintf("%s type %d", d.Protocol, *d.ICMPType)
	case d.Port != 0:
		return fmt.Sprintf("%s %d", d.Protocol, d.Port)
	case strings.Trim(d.Protocol, "0123456789") == "":
		return "IP protocol " + d.Protocol
	}
	return d.Protocol
}

// by returns the objects that drop the packets.
func (d *Drop) by() string {
	texts := make([]string, len(d.DecidedBy))
	for i, o := range d.DecidedBy {
		if texts[i] = o.String(); o.Rule != "" {
			texts[i] += ", " + o.Rule
		}
	}
	return strings.Join(texts, " or ")
}

// line is the first line about a connection.
func (d *Drop) line() string {
	return fmt.Sprintf("%s  %s → %s  %s  dropped by %s", d.First.UTC().Format(time.TimeOnly+"Z"), d.From, d.To, d.service(), d.by())
}

// dropKey has the fields that the packets of a connection have in common. Clients that try again have another source port.
type dropKey struct {
	acl, protocol       string
	toPort              bool
	source, destination netip.Addr
	port                uint16
	icmpType            uint8
}

func keyOfDrop(p loggedPacket) dropKey {
	return dropKey{p.ACL, p.Protocol, p.ToPort, p.Source, p.Destination, p.DestinationPort, p.Type}
}

// drops are the connections of a run.
type drops struct {
	all  map[dropKey]*Drop
	more int
}

// count adds a packet to its connection. It returns false for the first packet of a connection that has a place.
func (c *drops) count(p loggedPacket) bool {
	d := c.all[keyOfDrop(p)]
	switch {
	case d == nil && len(c.all) < maxDrops:
		return false
	case d == nil:
		c.more++
		return true
	}
	d.Packets++
	if p.Time.After(d.Last) {
		d.Last = p.Time
	}
	return true
}

// add adds a connection.
func (c *drops) add(p loggedPacket, d *Drop) {
	if c.all == nil {
		c.all = map[dropKey]*Drop{}
	}
	c.all[keyOfDrop(p)] = d
}

// write writes the report.
func (r *dropsRun) write() error {
	report := DropsReport{Drops: []Drop{}, MorePackets: r.drops.more, Unread: r.names.unread}
	for _, d := range r.drops.all {
		report.Drops = append(report.Drops, *d)
	}
	slices.SortFunc(report.Drops, func(a, b Drop) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), a.First.Compare(b.First), a.From.Address.Compare(b.From.Address), a.To.Address.Compare(b.To.Address), cmp.Compare(a.service(), b.service()))
	})
	return writeAs(r.out, r.printer, report, report.table)
}

func (r *DropsReport) table(out io.Writer) error {
	if len(r.Drops) == 0 && r.MorePackets == 0 {
		fmt.Fprintln(out, "no drop was logged")
	} else {
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "\nPACKETS\tFROM\tTO\tPROTOCOL\tDROPPED BY\tNODE")
		for i := range r.Drops[:min(len(r.Drops), shownDrops)] {
			d := &r.Drops[i]
			fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\n", d.Packets, plain(d.From.String()), plain(d.To.String()), plain(d.service()), plain(d.by()), plain(d.Node))
		}
		if err := w.Flush(); err != nil {
			return fmt.Errorf("write the report: %w", err)
		}
	}
	if more := len(r.Drops) - shownDrops; more > 0 {
		fmt.Fprintf(out, "%d more connections: see -o json\n", more)
	}
	if r.MorePackets > 0 {
		fmt.Fprintf(out, "%d packets of more connections: name a pod\n", r.MorePackets)
	}
	if len(r.Unread) > 0 {
		fmt.Fprintf(out, "addresses may have no names, because you may not: %s\n", strings.Join(r.Unread, ", "))
	}
	return nil
}
