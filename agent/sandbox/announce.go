// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"errors"
	"fmt"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/internal/node/neighbour"
)

// Announce sends a gratuitous ARP (RFC 5227, section 3) or an unsolicited neighbour advertisement (RFC 4861, section 7.2.6) for each address. A
// neighbour that knows an address from an earlier pod with another hardware address then uses the new one at once. Call it when the port passes
// packets. It does not make the kernel announce them: that would delete what the pod knows of its own neighbours.
func (i Interface) Announce() error {
	if err := i.inside(i.announce); err != nil {
		return fmt.Errorf("announce %w", err)
	}
	return nil
}

func (i Interface) announce(_ netlinksafe.Handle, link netlink.Link) error {
	var failed []error
	for _, p := range i.Addresses {
		if err := AnnounceAt(link, neighbour.Host{Address: p.Addr(), MAC: i.MAC}); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", p.Addr(), err))
		}
	}
	return errors.Join(failed...)
}

// AnnounceAt sends the frame that announces a host to the network of an interface.
func AnnounceAt(link netlink.Link, host neighbour.Host) error {
	frame, err := neighbour.Announcement(host)
	if err != nil {
		return err
	}
	conn, err := neighbour.Listen(link.Attrs().Index, neighbour.Protocol(host.Address))
	if err != nil {
		return err
	}
	defer conn.Close()
	return neighbour.Send(conn, frame)
}
