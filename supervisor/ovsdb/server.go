// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/kiln-net/kiln/supervisor"
)

// clientProbe is the default inactivity probe in milliseconds. A busy ovn-controller or ovn-northd can be silent for long, and
// each reconnection reads the whole database again.
const clientProbe = 60000

// remote holds the options of one listener in ovsdb-server's configuration file (ovsdb-server(1), --config-file).
type remote struct {
	Role            string `json:"role,omitempty"`
	InactivityProbe int    `json:"inactivity-probe,omitempty"`
}

// configuration is ovsdb-server's configuration file. It replaces rows of the Connection table: listeners and especially their
// roles apply from the start, without a leader, and clients cannot change them.
type configuration struct {
	Remotes   map[string]remote            `json:"remotes"`
	Databases map[string]map[string]string `json:"databases"`
}

func (o Options) socket() string  { return filepath.Join(o.RunDir, o.Database.Stem+".sock") }
func (o Options) control() string { return filepath.Join(o.RunDir, o.Database.Stem+".ctl") }

// configure returns the configuration for a database file.
func (o Options) configure(file string) configuration {
	c := configuration{
		Remotes:   map[string]remote{"punix:" + o.socket(): {}},
		Databases: map[string]map[string]string{file: {"service-model": "clustered"}},
	}
	for _, l := range o.Database.Clients {
		c.Remotes[passive(l.Port, o.Listen)] = remote{Role: l.Role, InactivityProbe: cmp.Or(l.Probe, clientProbe)}
	}
	return c
}

// writeConfiguration writes the configuration file of ovsdb-server and returns its path.
func (o Options) writeConfiguration(file string) (string, error) {
	content, err := json.MarshalIndent(o.configure(file), "", "  ")
	if err != nil {
		return "", fmt.Errorf("encode the configuration of ovsdb-server: %w", err)
	}
	path := filepath.Join(o.RunDir, o.Database.Stem+".json")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		return "", fmt.Errorf("write the configuration of ovsdb-server: %w", err)
	}
	return path, nil
}

// server writes the configuration file and returns the daemon that runs ovsdb-server on the database file.
func (o Options) server(file string) (supervisor.Daemon, error) {
	if err := os.MkdirAll(o.RunDir, 0o755); err != nil { //nolint:gosec // other users of the node list it; secrets are in files of mode 0600
		return supervisor.Daemon{}, fmt.Errorf("make the directory of sockets: %w", err)
	}
	path, err := o.writeConfiguration(file)
	if err != nil {
		return supervisor.Daemon{}, err
	}
	return supervisor.Daemon{
		Name: "ovsdb-server",
		Argv: slices.Concat(o.Programs.Server, []string{
			"--config-file=" + path,
			"--unixctl=" + o.control(),
		}, supervisor.TLSArgs(
			filepath.Join(o.TLSDir, "tls.key"), filepath.Join(o.TLSDir, "tls.crt"), filepath.Join(o.TLSDir, "ca.crt"),
		)),
		Control:  func(int) string { return o.control() },
		LogLevel: o.LogLevel,
		Log:      o.Log,
	}, nil
}
