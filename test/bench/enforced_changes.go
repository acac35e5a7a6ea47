// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"
)

// changer makes the changes: through the API or in NB directly. All policies have the first server as their only subject.
type changer interface {
	// isolate creates a policy that lets the client connect to one port only.
	isolate(ctx context.Context, name string, port int32) error
	// admit creates a policy that lets only the second server connect to a port, and the client while it is a member.
	admit(ctx context.Context, name string, port int32) error
	// release deletes all these policies.
	release(ctx context.Context) error
	// setMember adds the client to the peers of the policy of admit, or removes it.
	setMember(ctx context.Context, member bool) error
	// setEndpoint makes a server the only endpoint of the Service.
	setEndpoint(ctx context.Context, server int) error
	// vip is the address of the Service.
	vip() netip.Addr
}

// servicePort and endpointPort are the ports of the Service and of its endpoints.
const servicePort, endpointPort = 80, 8080

// families returns all changes, made by c.
func (e *enforcement) families(c changer) []family {
	return []family{e.policies(c), e.labels(c), e.endpoints(c)}
}

// policies creates a policy that denies the probes, and a second one that allows them.
func (e *enforcement) policies(c changer) family {
	return family{reset: c.release, changes: func(int) []change {
		other, probed := e.nextPort(), e.nextPort()
		create := func(what, name string, port int32, passes bool) change {
			return change{
				what: what, do: func(ctx context.Context) error { return c.isolate(ctx, name, port) },
				nb: sign{e.acls, fmt.Sprintf("tcp.dst == %d", port)}, sb: sign{e.sbFlows, fmt.Sprintf("tcp.dst == %d", port)},
				flow: fmt.Sprintf("tp_dst=%d", port),
				sent: e.toServer(probed), wanted: outcome{passed: passes},
			}
		}
		return []change{create("a policy denies", "denies", other, false), create("a policy allows", "allows", probed, true)}
	}}
}

// labels moves the client into the peers of a policy and out of them.
func (e *enforcement) labels(c changer) family {
	port := e.nextPort()
	return family{
		setUp:    func(ctx context.Context) error { return c.admit(ctx, "admits", port) },
		tearDown: c.release,
		changes: func(int) []change {
			set := func(what string, member bool) change {
				return change{
					what: what, do: func(ctx context.Context) error { return c.setMember(ctx, member) },
					nb: sign{e.peers, fmt.Sprintf("%q", e.client.ip)}, sb: sign{e.sbPeers, fmt.Sprintf("%q", e.client.ip)},
					flow: fmt.Sprintf("nw_src=%s,", e.client.ip),
					sent: e.toServer(port), wanted: outcome{passed: member},
				}
			}
			return []change{set("a label adds a peer", true), set("a label removes a peer", false)}
		},
	}
}

// endpoints replaces the Service's only endpoint by the other server, in one write, so that each packet shows which one is in effect.
func (e *enforcement) endpoints(c changer) family {
	first := func(ctx context.Context) error { return c.setEndpoint(ctx, 0) }
	return family{setUp: first, changes: func(round int) []change {
		server := 1 - round%2
		endpoint := fmt.Sprintf("%s:%d", e.servers[server].ip, endpointPort)
		return []change{{
			what: "an endpoint replaces another", do: func(ctx context.Context) error { return c.setEndpoint(ctx, server) },
			nb: sign{e.balancers, endpoint}, sb: sign{e.sbBalancers, endpoint}, flow: fmt.Sprintf("nw_dst=%s,", c.vip()),
			sent: stream{from: e.client, to: station{mac: e.router, ip: c.vip()}, port: servicePort}, wanted: outcome{server: server, passed: true},
		}}
	}}
}

// toServer are packets from the client to the first server.
func (e *enforcement) toServer(port int32) stream {
	return stream{from: e.client, to: e.servers[0], port: uint16(port), marked: true}
}

func (e *enforcement) nextPort() int32 {
	e.port++
	return e.port
}
