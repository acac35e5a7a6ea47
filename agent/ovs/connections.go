// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"

	"golang.org/x/sys/unix"

	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/supervisor/openflow"
)

// Connections are the connections that the Open vSwitch of a node tracks. Directory has its sockets.
type Connections struct{ Directory string }

// protocols are the numbers of IP protocols.
var protocols = map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "sctp": unix.IPPROTO_SCTP}

// Translated returns the former translations of which the integration bridge still has a flow, as far as it knows: after an error also the unchecked ones.
// ovn-controller deletes these flows some time after the row in the northbound database.
func (c Connections) Translated(ctx context.Context, all []v1.ConnectionFlush) ([]v1.ConnectionFlush, error) {
	bridge, err := openflow.Dial(ctx, filepath.Join(c.Directory, IntegrationBridge+".mgmt"))
	if err != nil {
		return all, fmt.Errorf("read the flows of %s: %w", IntegrationBridge, err)
	}
	var found []v1.ConnectionFlush
	for i, one := range all {
		has, err := translates(bridge, one)
		if err != nil {
			return append(found, all[i:]...), errors.Join(err, bridge.Close())
		}
		if has {
			found = append(found, one)
		}
	}
	return found, bridge.Close()
}

// translates reports whether a bridge has a flow of a translation: it matches one of the addresses, with the port if there is one, and translates to the other one.
// Flows that only match the address and the port, such as those of an ACL, do not. Of a prefix, flows of the addresses in it are those of other rules.
func translates(bridge *openflow.Conn, one v1.ConnectionFlush) (bool, error) {
	to := openflow.Filter{Destination: netip.PrefixFrom(one.Address, one.Address.BitLen()), Protocol: protocols[one.Protocol], Port: one.Port}
	if one.Port != 0 {
		return bridge.Translates(to, one.Internal.Addr())
	}
	has, err := bridge.Translates(openflow.Filter{Source: one.Internal}, one.Address)
	if !has && err == nil && !one.Source {
		has, err = bridge.Translates(to, one.Internal.Addr())
	}
	return has, err
}

// Flush deletes the tracked connections of former translations, and returns those for which it has. It waits first until the datapath has no flow that was made from older
// flows of the bridge: such a flow would track a new connection as before.
func (c Connections) Flush(ctx context.Context, all []v1.ConnectionFlush) (done []v1.ConnectionFlush, err error) {
	// A call returns at the end of a dump of the datapath, which may have begun before the flows of the bridge were deleted. The dump of the second call begins after the
	// end of the first one's, and so after Translated.
	for range 2 {
		if err := callSwitch(ctx, c.Directory, "revalidator/wait"); err != nil {
			return nil, fmt.Errorf("wait for the flows of the datapath: %w", err)
		}
	}
	for _, one := range all {
		for _, tuples := range tuplesOf(one) {
			if err := callSwitch(ctx, c.Directory, "dpctl/flush-conntrack", tuples...); err != nil {
				return done, fmt.Errorf("delete the connections of %s: %w", one.Address, err)
			}
		}
		done = append(done, one)
	}
	return done, nil
}

// tuplesOf returns the connections of a translation as arguments of dpctl/flush-conntrack (ovs-dpctl(8)): pairs of a tuple of the original direction and one of the answers.
func tuplesOf(one v1.ConnectionFlush) [][]string {
	field := func(v4, v6 string, address netip.Addr) string {
		name := v4
		if address.Is6() {
			name = v6
		}
		return name + "=" + address.String()
	}
	to := field("ct_nw_dst", "ct_ipv6_dst", one.Address)
	if one.Port != 0 {
		original := fmt.Sprintf("%s,ct_nw_proto=%d,ct_tp_dst=%d", to, protocols[one.Protocol], one.Port)
		return [][]string{{original, field("ct_nw_src", "ct_ipv6_src", one.Internal.Addr())}} // not the flows to the next pod of the port
	}
	if !one.Internal.IsSingleIP() { // of all sources: a tuple has no prefix
		return [][]string{{"", to}}
	}
	from := field("ct_nw_src", "ct_ipv6_src", one.Internal.Addr())
	tuples := [][]string{{from, to}}
	if !one.Source { // not the flows to the next pod of the address
		tuples = append(tuples, []string{to, from})
	}
	return tuples
}
