// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Rules returns the routing rules of every family that the kernel supports. A kernel started with ipv6.disable=1 does not list IPv6
// rules.
func Rules() ([]netlink.Rule, error) {
	var list []netlink.Rule
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		of, err := netlinksafe.RuleList(family)
		switch {
		case errors.Is(err, unix.EAFNOSUPPORT):
			continue
		case err != nil:
			return nil, fmt.Errorf("list rules: %w", err)
		}
		for i := range of {
			of[i].Family = family
		}
		list = append(list, of...)
	}
	return list, nil
}

// deletedRules returns a channel of the protocols (rtnetlink(7), fib_rule_hdr and FRA_PROTOCOL) of the rules that the kernel deletes, until done is
// closed. It calls report with an error that ends the subscription before.
func deletedRules(done <-chan struct{}, report func(error)) (<-chan uint8, error) {
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE)
	if err != nil {
		return nil, fmt.Errorf("subscribe to rules: %w", err)
	}
	if err := socket.SetReceiveBufferSize(messageBuffer, true); err != nil {
		socket.Close()
		return nil, fmt.Errorf("set the buffer of messages about rules: %w", err)
	}
	go func() {
		<-done
		socket.Close() // ends Receive
	}()
	deleted := make(chan uint8, 64)
	go func() {
		for {
			messages, _, err := socket.Receive()
			if err != nil {
				report(fmt.Errorf("receive messages about rules: %w", err))
				return
			}
			for _, m := range messages {
				if m.Header.Type != unix.RTM_DELRULE {
					continue
				}
				select {
				case deleted <- protocolOfRule(m.Data):
				case <-done:
					return
				}
			}
		}
	}()
	return deleted, nil
}

// protocolOfRule reads the protocol of the rule in a message; 0 if it has none.
func protocolOfRule(message []byte) uint8 {
	attributes, err := nl.ParseRouteAttr(message[min(len(message), unix.SizeofRtMsg):])
	if err != nil {
		return 0
	}
	for _, a := range attributes {
		if a.Attr.Type == nl.FRA_PROTOCOL && len(a.Value) > 0 {
			return a.Value[0]
		}
	}
	return 0
}
