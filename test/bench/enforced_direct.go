// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
)

// directChanger writes rows like Kiln's directly to NB. Its times are the floor: they contain OVN only.
type directChanger struct{ *enforcement }

var _ changer = directChanger{}

const (
	directGroup, directPeers, directBalancer = "bench_subjects", "bench_peers", "bench/direct/tcp"
	// directVIP is in the range of Service addresses, at the end that the API server does not reach.
	directVIP = "10.111.255.254"
	// directTier, directDrop and directAllow are those of NetworkPolicies.
	directTier, directDrop, directAllow = 2, 2000, 2001
)

// operation is one of RFC 7047, section 5.2.
type operation = map[string]any

func (c directChanger) isolate(_ context.Context, _ string, port int32) error {
	return c.policy(c.client.ip, port)
}
func (c directChanger) admit(_ context.Context, _ string, port int32) error {
	return c.policy(c.servers[1].ip, port)
}

// policy adds the ACLs of a policy to the subjects' port group. The first policy also inserts this group and the set of peers.
func (c directChanger) policy(peer netip.Addr, port int32) error {
	_, err := c.uuid("Port_Group", []any{"name", "==", directGroup})
	var operations []any
	if err != nil { // there is none
		operations = append(operations,
			operation{"op": "insert", "table": "Port_Group", "row": operation{"name": directGroup, "ports": []string{"uuid", c.serverPort}}},
			operation{"op": "insert", "table": "Address_Set", "row": operation{"name": directPeers, "addresses": peer.String()}})
	}
	acl := func(name, action string, priority int, match string) operation {
		return operation{"op": "insert", "table": "ACL", "uuid-name": name, "row": operation{
			"direction": "to-lport", "tier": directTier, "priority": priority, "action": action, "match": "outport == @" + directGroup + match,
		}}
	}
	operations = append(operations,
		acl("drop", "drop", directDrop, " && ip"),
		acl("allow", "allow-related", directAllow, fmt.Sprintf(" && ip4 && tcp.dst == %d && ip4.src == $%s", port, directPeers)),
		operation{"op": "mutate", "table": "Port_Group", "where": []any{[]any{"name", "==", directGroup}}, "mutations": []any{
			[]any{"acls", "insert", []any{"set", [][]string{{"named-uuid", "drop"}, {"named-uuid", "allow"}}}},
		}})
	return transact(c.nb, operations...)
}

func (c directChanger) release(context.Context) error {
	return transact(c.nb,
		operation{"op": "delete", "table": "Port_Group", "where": []any{[]any{"name", "==", directGroup}}},
		operation{"op": "delete", "table": "Address_Set", "where": []any{[]any{"name", "==", directPeers}}})
}

func (c directChanger) setMember(_ context.Context, member bool) error {
	mutator := map[bool]string{true: "insert", false: "delete"}[member]
	return transact(c.nb, operation{"op": "mutate", "table": "Address_Set", "where": []any{[]any{"name", "==", directPeers}},
		"mutations": []any{[]any{"addresses", mutator, c.client.ip.String()}}})
}

func (c directChanger) setEndpoint(_ context.Context, server int) error {
	return transact(c.nb, operation{"op": "update", "table": "Load_Balancer", "where": []any{[]any{"name", "==", directBalancer}},
		"row": operation{"vips": c.vips(server)}})
}

func (c directChanger) vips(server int) []any {
	vip, endpoint := fmt.Sprintf("%s:%d", directVIP, servicePort), fmt.Sprintf("%s:%d", c.servers[server].ip, endpointPort)
	return []any{"map", [][]string{{vip, endpoint}}}
}

func (c directChanger) vip() netip.Addr { return netip.MustParseAddr(directVIP) }

// serve inserts the load balancer, with the first server, into the load balancer group of the Service.
func (c directChanger) serve() error {
	ofService, err := c.uuid("Load_Balancer", []any{"name", "==", namespace + "/probe/tcp"})
	if err != nil {
		return err
	}
	in := []any{[]any{"load_balancer", "includes", []string{"uuid", ofService}}}
	if err := transact(c.nb,
		operation{"op": "insert", "table": "Load_Balancer", "uuid-name": "lb", "row": operation{
			"name": directBalancer, "protocol": "tcp", "vips": c.vips(0), "options": []any{"map", [][]string{{"reject", "true"}}},
		}},
		operation{"op": "mutate", "table": "Load_Balancer_Group", "where": in, "mutations": []any{
			[]any{"load_balancer", "insert", []string{"named-uuid", "lb"}},
		}},
	); err != nil {
		return errors.Join(errors.New("insert a load balancer"), err)
	}
	return nil
}
