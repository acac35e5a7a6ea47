// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
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
	"time"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/ovncluster"
	"github.com/kiln-net/kiln/supervisor/ovsdb/startup"
)

// files creates and reads the database file of a member with ovsdb-tool(1).
type files struct {
	tool     []string
	database Database
	path     string
	// backupDir is the directory of backups.
	backupDir string
	// local is this member's Raft address.
	local string
}

func newFiles(o Options) files {
	return files{
		tool:      o.Programs.Tool,
		database:  o.Database,
		path:      filepath.Join(o.DataDir, o.Database.Stem+".db"),
		backupDir: filepath.Join(o.DataDir, "backups"),
		local:     ovncluster.Endpoint(o.Address, o.Database.RaftPort),
	}
}

// room is the number of free bytes that the disk must have before a server that failed to write is restarted.
const room = 1 << 20

// probe returns an error while the disk cannot be written.
func (f files) probe() (err error) {
	path := f.path + ".probe"
	defer func() { err = errors.Join(err, os.Remove(path)) }()
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = file.Write(make([]byte, room))
	return errors.Join(err, file.Sync(), file.Close())
}

// identify reads the file's identity; nil if there is no file.
func (f files) identify(ctx context.Context) (*startup.File, error) {
	if _, err := os.Stat(f.path); errors.Is(err, os.ErrNotExist) {
		return nil, nil //nolint:nilnil // no file is a state, not a failure
	} else if err != nil {
		return nil, fmt.Errorf("look for the database file: %w", err)
	}
	since, err := f.readSince()
	if err != nil {
		return nil, err
	}
	id := &startup.File{Path: f.path, Since: since}
	if id.Unusable = f.check(ctx); id.Unusable != nil && !id.Moved() {
		return id, ctx.Err()
	}
	if id.ClusterID, err = f.clusterID(ctx); err != nil {
		return nil, err
	}
	id.ServerID, err = f.run(ctx, "db-sid", f.path)
	return id, err
}

// check returns an error if the file cannot serve here; the error says what to do. It checks the address last, so that
// startup.ErrMoved means an otherwise intact file.
func (f files) check(ctx context.Context) error {
	name, err := f.run(ctx, "db-name", f.path)
	if err != nil {
		return err
	}
	if name != f.database.Name {
		return fmt.Errorf("%s holds the database %s, not %s: move it away", f.path, name, f.database.Name)
	}
	if _, err := f.run(ctx, "db-is-clustered", f.path); err != nil {
		return fmt.Errorf("%s is not a clustered database: move it away, or restore it by ovsdb-tool create-cluster: %w", f.path, err)
	}
	if left, err := f.hasLeft(); err != nil || left {
		return cmp.Or(err, fmt.Errorf("%s is of a server that has left its cluster", f.path))
	}
	address, err := f.run(ctx, "db-local-address", f.path)
	if err != nil {
		return err
	}
	if address != f.local {
		return fmt.Errorf("%s is of a member at %s, but this one is at %s: %w", f.path, address, f.local, startup.ErrMoved)
	}
	return nil
}

// hasLeft looks for the last record of a server that has left its cluster (ovsdb(5), Clustered Format). ovsdb-server refuses
// such a file.
func (f files) hasLeft() (bool, error) {
	file, err := os.Open(f.path)
	if err != nil {
		return false, fmt.Errorf("read the database file: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return false, fmt.Errorf("read the database file: %w", err)
	}
	end := make([]byte, min(info.Size(), 256))
	if _, err := file.ReadAt(end, info.Size()-int64(len(end))); err != nil {
		return false, fmt.Errorf("read the database file: %w", err)
	}
	lines := bytes.Split(bytes.TrimSpace(end), []byte("\n"))
	var record struct {
		Note string `json:"note"`
	}
	return json.Unmarshal(lines[len(lines)-1], &record) == nil && record.Note == "left", nil
}

// sincePath is the path of a file next to the database's that stores the record by which the member joined
// (DatabaseMember.since). It distinguishes a database file of an earlier membership from one of a member that has just joined
// and is not yet recorded.
func (f files) sincePath() string { return f.path + ".since" }

func (f files) readSince() (time.Time, error) {
	text, err := os.ReadFile(f.sincePath())
	if errors.Is(err, os.ErrNotExist) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("read when the member joined: %w", err)
	}
	since, err := time.Parse(time.RFC3339, strings.TrimSpace(string(text)))
	if err != nil {
		return time.Time{}, nil //nolint:nilerr // an unreadable record counts as older than any other
	}
	return since, nil
}

// writeSince replaces the record in one step that survives a power failure: an empty record would mark a healthy database file as
// one of an earlier membership.
func (f files) writeSince(since time.Time) error {
	if err := replaceFile(f.sincePath(), since.UTC().Format(time.RFC3339)+"\n"); err != nil {
		return fmt.Errorf("write when the member begins: %w", err)
	}
	return nil
}

// replaceFile writes a file under a temporary name, syncs it, and renames it.
func replaceFile(path, content string) error {
	fresh := path + ".new"
	file, err := os.OpenFile(fresh, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.WriteString(content)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Rename(fresh, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// aside returns the new name for a database file that is no longer used.
func (f files) aside() string {
	return f.path + ".aside-" + time.Now().UTC().Format("20060102T150405.000")
}

// setAside renames the file and returns the new name. Database files are never deleted.
func (f files) setAside() (string, error) {
	aside := f.aside()
	if err := os.Rename(f.path, aside); err != nil {
		return "", fmt.Errorf("set the database file aside: %w", err)
	}
	return aside, syncDir(filepath.Dir(f.path))
}

// clusterID returns the cluster ID. It is empty for the exit status that means "not yet known".
func (f files) clusterID(ctx context.Context) (string, error) {
	id, err := f.run(ctx, "db-cid", f.path)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == 2 {
		return "", nil
	}
	return id, err
}

// electionTimer is how long followers wait for a silent leader, in milliseconds. The default of one second causes leader changes
// on busy nodes.
const electionTimer = "--election-timer=5000"

// create makes the first member of a new cluster.
func (f files) create(ctx context.Context) error {
	return f.place(ctx, func(path string) []string {
		return []string{electionTimer, "create-cluster", path, f.database.Schema, f.local}
	})
}

// recover makes the first member of a new cluster from the plan's source. The new file replaces the current one, which stays
// under the name aside. The date is written last: after a crash before that, recover runs again with the new file as its source;
// no other member has seen the new cluster at that time.
func (f files) recover(ctx context.Context, p startup.Plan) (aside string, err error) {
	whole := f.path + ".standalone"
	if err := removeIfThere(whole, lockOf(whole)); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, removeIfThere(whole, lockOf(whole))) }()
	from := whole
	switch p.Source {
	case v1alpha1.RecoverMember:
		_, err = f.run(ctx, "cluster-to-standalone", whole, f.path)
	case v1alpha1.RecoverBackup:
		backup := filepath.Join(f.backups(), p.Backup)
		if _, err = f.verify(ctx, backup); err == nil {
			_, err = f.run(ctx, "convert", backup, f.database.Schema, whole) // the backup may have an older schema
		}
	case v1alpha1.RecoverRebuild, v1alpha1.RecoverNone:
		from = f.database.Schema
	}
	if err != nil {
		return "", err
	}
	aside = f.aside()
	if err := os.Link(f.path, aside); errors.Is(err, os.ErrNotExist) {
		aside = ""
	} else if err != nil {
		return "", fmt.Errorf("keep the database file under another name: %w", err)
	}
	if err := f.place(ctx, func(path string) []string {
		return []string{electionTimer, "create-cluster", path, from, f.local}
	}); err != nil {
		return "", err
	}
	return aside, f.writeSince(p.Since)
}

// join makes a member that joins the plan's cluster through any of its remotes.
func (f files) join(ctx context.Context, p startup.Plan) error {
	if err := os.MkdirAll(filepath.Dir(f.path), 0o750); err != nil {
		return fmt.Errorf("make the data directory: %w", err)
	}
	if err := f.writeSince(p.Since); err != nil {
		return err
	}
	return f.place(ctx, func(path string) []string {
		args := []string{"--cid=" + p.ClusterID, "join-cluster", path, f.database.Name, f.local}
		for _, r := range p.Remotes {
			args = append(args, ovncluster.Endpoint(r, f.database.RaftPort))
		}
		return args
	})
}

// place has ovsdb-tool create a file under a temporary name, and renames it once it is complete.
func (f files) place(ctx context.Context, args func(path string) []string) error {
	dir := filepath.Dir(f.path)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("make the data directory: %w", err)
	}
	fresh := f.path + ".new"
	if err := removeIfThere(fresh, lockOf(fresh)); err != nil {
		return err
	}
	if _, err := f.run(ctx, args(fresh)...); err != nil {
		return err
	}
	if err := os.Rename(fresh, f.path); err != nil {
		return fmt.Errorf("name the new database file: %w", err)
	}
	if err := removeIfThere(lockOf(fresh)); err != nil {
		return err
	}
	return syncDir(dir)
}

// lockOf returns the path of the lock file that ovsdb-tool leaves next to a database file.
func lockOf(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".~lock~")
}

func removeIfThere(paths ...string) error {
	for _, path := range paths {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove an unused file: %w", err)
		}
	}
	return nil
}

// syncDir syncs a directory, so that the name of a new file survives a power failure.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open the data directory: %w", err)
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// run runs ovsdb-tool and returns its standard output.
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

// passive returns a listening connection method over TLS (ovsdb(7)): pssl:6641:[::].
func passive(port int, address netip.Addr) string {
	host := address.String()
	if address.Is6() {
		host = "[" + host + "]"
	}
	return "pssl:" + strconv.Itoa(port) + ":" + host
}

// anyAddress returns [::], which serves both families, or 0.0.0.0 if the kernel has no IPv6.
func anyAddress() netip.Addr {
	probe, err := net.Listen("tcp6", "[::]:0")
	if err != nil {
		return netip.IPv4Unspecified()
	}
	_ = probe.Close() // only whether listening works matters
	return netip.IPv6Unspecified()
}
