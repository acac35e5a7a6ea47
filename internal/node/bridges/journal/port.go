// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/internal/node/providerbridge"
	"github.com/kiln-net/kiln/supervisor/jsonrpc"
	"github.com/kiln-net/kiln/supervisor/unixctl"
)

// switchTimeout bounds a request to Open vSwitch during a restoration. Two of them are shorter than lockTimeout.
const switchTimeout = 1500 * time.Millisecond

// removePort removes the port of the interface from the bridge in Open vSwitch's database. As long as it is there, ovs-vswitchd attaches the interface
// again at the next change of any interface. It opens a connection of its own, because a restoration depends on nothing else. It reports whether there was
// a port.
func (d Directory) removePort(ctx context.Context, j *Journal) (found bool, err error) {
	if d.RunDir == "" {
		return true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, switchTimeout)
	defer cancel()
	conn, err := jsonrpc.Dial(ctx, filepath.Join(d.RunDir, "db.sock"))
	if err != nil {
		return found, fmt.Errorf("remove the port of %s: %w", j.Uplink, err)
	}
	defer conn.Close()
	const database = "Open_vSwitch"
	var ports []struct {
		UUID jsonrpc.UUID        `json:"_uuid"`
		IDs  jsonrpc.Map[string] `json:"external_ids"`
	}
	if err := conn.Select(database, "Port", []string{"_uuid", "external_ids"}, []any{[]any{"name", "==", j.Uplink}}, &ports); err != nil {
		return found, fmt.Errorf("remove the port of %s: %w", j.Uplink, err)
	}
	for _, port := range ports {
		if provider := port.IDs[providerbridge.PortKey]; provider == "" || providerbridge.Bridge(provider) != j.Bridge {
			continue
		}
		found = true
		remove := map[string]any{
			"op": "mutate", "table": "Bridge", "where": []any{[]any{"name", "==", j.Bridge}},
			"mutations": []any{[]any{"ports", "delete", []any{"set", []any{[]any{"uuid", port.UUID}}}}},
		}
		var results []struct{ Error, Details string }
		if err := conn.Call("transact", []any{database, remove}, &results); err != nil {
			return found, fmt.Errorf("remove the port of %s: %w", j.Uplink, err)
		}
		for _, r := range results {
			if r.Error != "" {
				return found, fmt.Errorf("remove the port of %s: %s: %s", j.Uplink, r.Error, r.Details)
			}
		}
	}
	return found, nil
}

// switchEnded reports whether no process listens on the socket that ovs-vswitchd has for a bridge. A process that hangs does.
func (d Directory) switchEnded(bridge string) bool {
	if d.RunDir == "" {
		return false
	}
	conn, err := net.Dial("unix", filepath.Join(d.RunDir, bridge+".mgmt"))
	if err == nil {
		_ = conn.Close()
	}
	return errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOENT)
}

// stopSwitch ends an ovs-vswitchd whose database is not reached: it would attach the interface again from its copy. The kernel keeps forwarding by the flows
// that it has. It is started again by `kiln ovs`, with the database.
func (d Directory) stopSwitch(ctx context.Context) {
	sockets, _ := filepath.Glob(filepath.Join(d.RunDir, "ovs-vswitchd.*.ctl")) // fails for malformed patterns only
	ctx, cancel := context.WithTimeout(ctx, switchTimeout)
	defer cancel()
	for _, socket := range sockets {
		_, _ = unixctl.Call(ctx, socket, "exit") // a process that does not answer does not attach interfaces either
	}
}
