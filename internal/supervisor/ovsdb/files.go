// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/kiln-net/kiln/internal/supervisor/ovncluster"
)

// identity is what a database file says about itself.
type identity struct {
	path string
	// clusterID is empty while a joining member does not know it.
	clusterID string
	// address is the member's Raft address: ssl:192.0.2.1:6643.
	address string
}

// files makes and reads the database file of a member, through ovsdb-tool(1).
type files struct {
	tool     []string
	database Database
	path     string
	// local is this member's Raft address.
	local string
}

func newFiles(o Options) files {
	return files{
		tool:     o.Programs.Tool,
		database: o.Database,
		path:     filepath.Join(o.DataDir, o.Database.Stem+".db"),
		local:    ovncluster.Endpoint(o.Address, o.Database.RaftPort),
	}
}

// identify reads the file; nil when there is none. A file that cannot serve here is an error that says what to do.
func (f files) identify(ctx context.Context) (*identity, error) {
	if _, err := os.Stat(f.path); errors.Is(err, os.ErrNotExist) {
		return nil, nil //nolint:nilnil // no file is a state, not a failure
	} else if err != nil {
		return nil, fmt.Errorf("look for the database file: %w", err)
	}
	name, err := f.run(ctx, "db-name", f.path)
	if err != nil {
		return nil, err
	}
	if name != f.database.Name {
		return nil, fmt.Errorf("%s holds the database %s, not %s: move it away", f.path, name, f.database.Name)
	}
	if _, err := f.run(ctx, "db-is-clustered", f.path); err != nil {
		return nil, fmt.Errorf("%s is not a clustered database: move it away, or restore it by ovsdb-tool create-cluster: %w", f.path, err)
	}
	address, err := f.run(ctx, "db-local-address", f.path)
	if err != nil {
		return nil, err
	}
	if address != f.local {
		return nil, fmt.Errorf("%s is of a member at %s, but this one is at %s: a member cannot change its address; "+
			"move the file away, so that it joins anew", f.path, address, f.local)
	}
	clusterID, err := f.clusterID(ctx)
	if err != nil {
		return nil, err
	}
	return &identity{path: f.path, clusterID: clusterID, address: address}, nil
}

// clusterID is empty for the exit status that means "not yet known".
func (f files) clusterID(ctx context.Context) (string, error) {
	id, err := f.run(ctx, "db-cid", f.path)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == 2 {
		return "", nil
	}
	return id, err
}

// create makes the first member of a new cluster. electionTimer is how long, in milliseconds, followers bear a silent leader: the
// default of one second makes leaders change on busy nodes.
func (f files) create(ctx context.Context) error {
	const electionTimer = "--election-timer=5000"
	return f.place(ctx, func(path string) []string {
		return []string{electionTimer, "create-cluster", path, f.database.Schema, f.local}
	})
}

// join makes a member that joins a cluster through any of the remotes.
func (f files) join(ctx context.Context, clusterID string, remotes []netip.Addr) error {
	return f.place(ctx, func(path string) []string {
		args := []string{"--cid=" + clusterID, "join-cluster", path, f.database.Name, f.local}
		for _, r := range remotes {
			args = append(args, ovncluster.Endpoint(r, f.database.RaftPort))
		}
		return args
	})
}

// place lets the tool make a new file, which gets its name only once it is whole.
func (f files) place(ctx context.Context, args func(path string) []string) error {
	dir := filepath.Dir(f.path)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("make the data directory: %w", err)
	}
	fresh := f.path + ".new"
	lock := filepath.Join(dir, "."+filepath.Base(fresh)+".~lock~") // ovsdb-tool leaves it
	for _, left := range []string{fresh, lock} {
		if err := os.Remove(left); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove an unfinished database file: %w", err)
		}
	}
	if _, err := f.run(ctx, args(fresh)...); err != nil {
		return err
	}
	if err := os.Rename(fresh, f.path); err != nil {
		return fmt.Errorf("name the new database file: %w", err)
	}
	if err := os.Remove(lock); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the lock of the new database file: %w", err)
	}
	return syncDir(dir)
}

// syncDir makes the name of a new file survive a power failure.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open the data directory: %w", err)
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// run returns what ovsdb-tool prints on standard output.
func (f files) run(ctx context.Context, args ...string) (string, error) {
	argv := slices.Concat(f.tool, []string{"-vsyslog:off", "-vfile:off"}, args)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("ovsdb-tool %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(complaints.String()))
	}
	return strings.TrimSpace(out.String()), nil
}

// passive is a listening connection method over TLS (ovsdb(7)): pssl:6641:[::].
func passive(port int, address netip.Addr) string {
	host := address.String()
	if address.Is6() {
		host = "[" + host + "]"
	}
	return "pssl:" + strconv.Itoa(port) + ":" + host
}

// anyAddress is [::], which serves both families, or 0.0.0.0 where the kernel has no IPv6.
func anyAddress() netip.Addr {
	probe, err := net.Listen("tcp6", "[::]:0")
	if err != nil {
		return netip.IPv4Unspecified()
	}
	_ = probe.Close() // it listened: that is all the question
	return netip.IPv6Unspecified()
}
