// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/kiln-net/kiln/internal/ovsdb/schema"
	"github.com/kiln-net/kiln/internal/testing/prepared"
	"github.com/kiln-net/kiln/supervisor/jsonrpc"
)

// startDatabases starts both OVN databases and ovn-northd.
func (w *world) startDatabases() error {
	tls := w.serverTLS()
	secure := []string{
		"--remote=pssl:" + northboundPort + ":" + w.address, "--remote=ptcp:" + plainNorthboundPort + ":" + w.address,
		"--private-key=" + filepath.Join(tls, "tls.key"), "--certificate=" + filepath.Join(tls, "tls.crt"), "--ca-cert=" + filepath.Join(tls, "ca.crt"),
	}
	if err := w.startDatabase("nb", schema.Northbound, secure...); err != nil {
		return err
	}
	if err := w.startDatabase("sb", schema.Southbound, "--remote=ptcp:"+plainSouthboundPort+":"+w.address); err != nil {
		return err
	}
	return w.startOVN(northd, "usr/bin/ovn-northd", "--ovnnb-db=unix:"+w.socket("nb"), "--ovnsb-db=unix:"+w.socket("sb"),
		"--unixctl="+filepath.Join(w.dir, "northd.ctl"), "-vconsole:warn", "-vsyslog:off")
}

func (w *world) socket(db string) string { return filepath.Join(w.dir, db+".sock") }
func (w *world) file(db string) string   { return filepath.Join(w.dir, db+".db") }

func (w *world) startDatabase(db string, content []byte, args ...string) error {
	schemaFile := filepath.Join(w.dir, db+".ovsschema")
	if err := os.WriteFile(schemaFile, content, 0o600); err != nil {
		return fmt.Errorf("write a schema: %w", err)
	}
	if out, err := w.ovn("usr/bin/ovsdb-tool", "create", w.file(db), schemaFile).CombinedOutput(); err != nil {
		return fmt.Errorf("ovsdb-tool create: %w\n%s", err, out)
	}
	args = append([]string{"--remote=punix:" + w.socket(db), "--unixctl=" + filepath.Join(w.dir, db+".ctl"), "-vconsole:warn", "-vsyslog:off"}, args...)
	w.commits[db] = newCommitLog(w.file(db))
	name := "ovsdb-" + db
	if err := w.startOVN(name, "usr/sbin/ovsdb-server", append(args, w.file(db))...); err != nil {
		return err
	}
	return within(time.Minute, func() error {
		conn, err := net.Dial("unix", w.socket(db))
		if err != nil {
			return fmt.Errorf("reach %s: %w\n%s", name, err, w.running[name].tail())
		}
		return conn.Close()
	})
}

func (w *world) startOVN(name, path string, args ...string) error {
	p, err := w.start(name, w.ovn(path, args...))
	if err != nil {
		return err
	}
	w.pids[name] = p.pid()
	return nil
}

// ovn returns the command of a program from the cached root file system, with the libraries of that file system.
func (w *world) ovn(path string, args ...string) *exec.Cmd {
	root := filepath.Join(w.cache, prepared.Root)
	libraries := filepath.Join(root, "lib/x86_64-linux-gnu") + ":" + filepath.Join(root, "usr/lib/x86_64-linux-gnu")
	command := w.layout.server(filepath.Join(root, "lib64/ld-linux-x86-64.so.2"), "--library-path", libraries, filepath.Join(root, path))
	cmd := exec.Command(command[0], append(command[1:], args...)...)
	cmd.Env = append(os.Environ(), "OVS_RUNDIR="+w.dir, "OVS_LOGDIR="+w.dir, "OVN_RUNDIR="+w.dir)
	return cmd
}

// pause stops ovn-northd with SIGSTOP, so that only the system's own part is measured.
func (w *world) pause() error { return w.signalNorthd(syscall.SIGSTOP) }

// resume continues a paused ovn-northd.
func (w *world) resume() error { return w.signalNorthd(syscall.SIGCONT) }

func (w *world) signalNorthd(signal syscall.Signal) error {
	if err := w.running[northd].cmd.Process.Signal(signal); err != nil {
		return fmt.Errorf("send %s a %s: %w", northd, signal, err)
	}
	return nil
}

// flows counts the logical flows in the southbound database.
func (w *world) flows(ctx context.Context) (int, error) {
	conn, err := jsonrpc.Dial(ctx, w.socket("sb"))
	if err != nil {
		return 0, fmt.Errorf("dial the southbound database: %w", err)
	}
	defer conn.Close()
	all := map[string]any{"op": "select", "table": "Logical_Flow", "where": []any{}, "columns": []string{"_uuid"}}
	var results [1]struct{ Rows []struct{} }
	if err := conn.Call("transact", []any{southbound, all}, &results); err != nil {
		return 0, fmt.Errorf("count logical flows: %w", err)
	}
	return len(results[0].Rows), nil
}

// northdCaughtUp waits until ovn-northd has written the present content of NB to SB.
func (w *world) northdCaughtUp(ctx context.Context) error { return w.caughtUp(ctx, "sb_cfg") }

// caughtUp waits until a column of NB_Global has the new value of nb_cfg: sb_cfg follows ovn-northd, hv_cfg all chassis (ovn-nb(5)).
func (w *world) caughtUp(ctx context.Context, column string) error {
	conn, err := jsonrpc.Dial(ctx, w.socket("nb"))
	if err != nil {
		return fmt.Errorf("dial the northbound database: %w", err)
	}
	defer conn.Close()
	bump := map[string]any{"op": "mutate", "table": "NB_Global", "where": []any{}, "mutations": []any{[]any{"nb_cfg", "+=", 1}}}
	look := map[string]any{"op": "select", "table": "NB_Global", "where": []any{}, "columns": []string{"nb_cfg", column}}
	if err := transact(conn, bump); err != nil {
		return err
	}
	for ctx.Err() == nil {
		var results []struct{ Rows []map[string]int }
		if err := conn.Call("transact", []any{northbound, look}, &results); err != nil {
			return fmt.Errorf("read %s: %w", column, err)
		}
		if len(results) == 1 && len(results[0].Rows) == 1 && results[0].Rows[0][column] >= results[0].Rows[0]["nb_cfg"] {
			return nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
	return context.Cause(ctx)
}
