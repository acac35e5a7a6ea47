// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/kiln-net/kiln/supervisor"
)

// prepareDatabase creates conf.db if it is missing, and converts it if its schema has another version (ovsdb-tool(1)).
func prepareDatabase(ctx context.Context, o Options) error {
	for _, dir := range []string{o.ConfigDir, o.RunDir, o.OVNRunDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // other users of the node list it; secrets are in files of mode 0600
			return fmt.Errorf("make the directories of Open vSwitch: %w", err)
		}
	}
	// This directory is created first: CleanUp takes it as the sign that there is something to remove.
	if err := os.MkdirAll(o.certificates(), 0o700); err != nil {
		return fmt.Errorf("make the directory of the chassis' certificate: %w", err)
	}
	_, err := os.Stat(o.database())
	if errors.Is(err, os.ErrNotExist) {
		return createDatabase(ctx, o)
	}
	if err != nil {
		return fmt.Errorf("look for conf.db: %w", err)
	}
	answer, err := tool(ctx, o, "needs-conversion", o.database(), o.Programs.Schema)
	if err != nil || answer != "yes" {
		return err
	}
	o.Log.Info("converting the database to the schema of this Open vSwitch", "file", o.database())
	_, err = tool(ctx, o, "convert", o.database(), o.Programs.Schema) // replaces the file in one step
	return err
}

// createDatabase creates the file under a temporary name and renames it once it is complete.
func createDatabase(ctx context.Context, o Options) error {
	fresh := o.database() + ".new"
	lock := filepath.Join(o.ConfigDir, ".conf.db.new.~lock~") // ovsdb-tool leaves this file behind
	if err := removeIfThere(fresh, lock); err != nil {
		return err
	}
	if _, err := tool(ctx, o, "create", fresh, o.Programs.Schema); err != nil {
		return err
	}
	if err := os.Rename(fresh, o.database()); err != nil {
		return fmt.Errorf("name the new conf.db: %w", err)
	}
	return removeIfThere(lock)
}

func removeIfThere(paths ...string) error {
	for _, path := range paths {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove leftovers of an earlier process: %w", err)
		}
	}
	return nil
}

func tool(ctx context.Context, o Options, args ...string) (string, error) {
	argv := slices.Concat(o.Programs.Tool, []string{"-vsyslog:off", "-vfile:off"}, args)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("ovsdb-tool %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(complaints.String()))
	}
	return strings.TrimSpace(string(out)), nil
}

// daemons returns the keepers of the node's daemons. ovs-vswitchd waits for connected, ovn-controller for configured.
func daemons(o Options, connected, configured <-chan struct{}) (database, vswitch, controller *supervisor.Keeper) {
	// ovs-appctl(8) and ovn-appctl(8) look for sockets and PID files in these directories.
	env := []string{"OVS_RUNDIR=" + o.RunDir, "OVN_RUNDIR=" + o.OVNRunDir, "OVS_DBDIR=" + o.ConfigDir, "OVS_SYSCONFDIR=" + filepath.Dir(o.ConfigDir)}
	daemon := func(program []string, name, runDir string, level *supervisor.LogLevel, args ...string) supervisor.Daemon {
		return supervisor.Daemon{
			Name: name,
			Argv: slices.Concat(program, args, []string{"--pidfile", "--overwrite-pidfile"}),
			Env:  env,
			Control: func(pid int) string {
				return filepath.Join(runDir, name+"."+strconv.Itoa(pid)+".ctl")
			},
			LogLevel: level,
			Log:      o.Log,
		}
	}
	socket := "unix:" + o.socket()
	database = &supervisor.Keeper{Daemon: daemon(o.Programs.Server, "ovsdb-server", o.RunDir, o.LogLevel, o.database(), "--remote=p"+socket)}
	vswitch = &supervisor.Keeper{After: connected, Daemon: daemon(o.Programs.Switch, "ovs-vswitchd", o.RunDir, o.LogLevel, socket)}
	controller = &supervisor.Keeper{
		After: configured, Unlimited: true, // ovs-vswitchd forwards packets without it
		Daemon: daemon(o.Programs.Controller, "ovn-controller", o.OVNRunDir, o.ControllerLogLevel, slices.Concat([]string{socket}, supervisor.TLSArgs(
			filepath.Join(o.certificates(), keyFile), filepath.Join(o.certificates(), certificateFile),
			filepath.Join(o.TrustDir, "sb-server.crt"),
		))...),
	}
	controller.Daemon.Exit = []string{"--restart"} // retains the chassis and its flows for the next container
	return database, vswitch, controller
}
