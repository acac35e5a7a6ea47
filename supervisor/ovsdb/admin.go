// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/kiln-net/kiln/internal/version"
	"github.com/kiln-net/kiln/supervisor/adminapi"
	"github.com/kiln-net/kiln/supervisor/jsonrpc"
	"github.com/kiln-net/kiln/supervisor/unixctl"
)

// Status implements adminapi.Database.
func (m *member) Status(ctx context.Context) (adminapi.Status, error) {
	if waiting := m.waiting.Load(); waiting != nil {
		status := *waiting
		status.Unguarded = m.unguarded()
		m.backups.tell(&status)
		return status, nil
	}
	text, err := m.call(ctx, "cluster/status", m.options.Database.Name)
	if err != nil {
		return adminapi.Status{}, err
	}
	raft, err := unixctl.ParseRaft(text)
	if err != nil {
		return adminapi.Status{}, err
	}
	status := adminapi.Status{
		ClusterID:     raft.ClusterID,
		ServerID:      raft.ServerID,
		Address:       raft.Address,
		Role:          raft.Role,
		Term:          raft.Term,
		Leader:        raft.Leader,
		LeaderAddress: raft.LeaderAddress(),
		Connected:     raft.Connected(),
		LastIndex:     raft.LastIndex,
		Members:       make([]adminapi.Member, 0, len(raft.Servers)),
	}
	for _, s := range raft.Servers {
		status.Members = append(status.Members, adminapi.Member{ServerID: s.ID, Address: s.Address})
	}
	if began := m.began.Load(); began != nil {
		status.Since = *began
	}
	if status.Versions, err = m.versions(ctx); err != nil {
		return adminapi.Status{}, err
	}
	status.Unguarded = m.unguarded()
	m.backups.tell(&status)
	return status, nil
}

// versions returns the versions of Kiln and of the running server.
func (m *member) versions(ctx context.Context) (version.Programs, error) {
	answer, err := m.call(ctx, "version")
	return version.Programs{Kiln: version.Kiln, OpenVSwitch: version.OfDaemon(answer)}, err
}

// Kick implements adminapi.Database. It looks for the server itself: if a member is alone in the cluster, ovsdb-server
// 3.5 takes an unknown name for the member's and leaves.
func (m *member) Kick(ctx context.Context, server string) error {
	status, err := m.Status(ctx)
	if err != nil {
		return err
	}
	name, err := toKick(status, server)
	if err != nil {
		return err
	}
	_, err = m.call(ctx, "cluster/kick", m.options.Database.Name, name)
	return err
}

// toKick returns a name of the other member that server identifies, as cluster/kick takes it (ovsdb-server(1)): the address, or the first
// digits of the ID if another member has the same address.
func toKick(status adminapi.Status, server string) (string, error) {
	var found []adminapi.Member
	at := map[string]int{}
	for _, member := range status.Members {
		at[member.Address]++
		if server == member.Address || len(server) >= 4 && server[:4] == member.ServerID {
			found = append(found, member)
		}
	}
	switch {
	case len(found) != 1:
		return "", fmt.Errorf("%d members are %q", len(found), server)
	case found[0].Address == status.Address && strings.HasPrefix(status.ServerID, found[0].ServerID):
		return "", fmt.Errorf("%q is this member itself: let it leave", server)
	case at[found[0].Address] > 1:
		return found[0].ServerID, nil
	}
	return found[0].Address, nil
}

// Leave implements adminapi.Database.
func (m *member) Leave(ctx context.Context) error {
	_, err := m.call(ctx, "cluster/leave", m.options.Database.Name)
	if answer := new(jsonrpc.Error); errors.As(err, &answer) && strings.Contains(answer.Text, "already in progress leaving") {
		return nil
	}
	return err
}

// Compact implements adminapi.Database.
func (m *member) Compact(ctx context.Context) error {
	_, err := m.call(ctx, "ovsdb-server/compact", m.options.Database.Name)
	return err
}

// BeyondVXLAN implements adminapi.Database.
func (m *member) BeyondVXLAN(ctx context.Context) (beyond adminapi.BeyondVXLAN, err error) {
	above := func(table string, limit int) map[string]any {
		return map[string]any{"op": "select", "table": table, "columns": []string{"tunnel_key"}, "where": []any{[]any{"tunnel_key", ">", limit}}}
	}
	var found []struct {
		Rows  []json.RawMessage `json:"rows"`
		Error string            `json:"error"`
	}
	err = m.ask(ctx, "transact", []any{
		m.options.Database.Name, above("Datapath_Binding", adminapi.MaxVXLANDatapath), above("Port_Binding", adminapi.MaxVXLANPort),
	}, &found)
	if err != nil {
		return beyond, err
	}
	if len(found) != 2 || found[0].Error != "" || found[1].Error != "" {
		return beyond, fmt.Errorf("count tunnel keys in %s: unexpected answer %+v", m.options.Database.Name, found)
	}
	return adminapi.BeyondVXLAN{Datapaths: len(found[0].Rows), Ports: len(found[1].Rows)}, nil
}

func (m *member) call(ctx context.Context, command string, args ...string) (string, error) {
	return unixctl.Call(ctx, m.options.control(), command, args...)
}
