// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"

	"github.com/kiln-net/kiln/cni/wire"
)

// DefaultPriority is the priority of the network configuration if none is set.
const DefaultPriority = "01"

// configSuffix ends the names of files of the network configuration. Two digits precede it.
const configSuffix = "-kube-ovn.conflist"

// priority is the form of a priority.
var priority = regexp.MustCompile(`^[0-9]{2}$`)

// CheckPriority returns an error unless a priority is two digits, so that it cannot name a file elsewhere.
func CheckPriority(given string) error {
	if !priority.MatchString(given) {
		return fmt.Errorf("priority %q: write two digits", given)
	}
	return nil
}

// ConfigName returns the name of the file of the network configuration. The runtime uses the first file in lexical order.
func ConfigName(priority string) string { return cmp.Or(priority, DefaultPriority) + configSuffix }

// NetworkName is the name of the network in its configuration.
const NetworkName = "kube-ovn"

// Plugin installs the files with which the container runtime calls the agent. Only CleanUp removes them: while the agent is down, the
// plugin reports that to the runtime.
type Plugin struct {
	// Source is the directory of plugins in the agent's image.
	Source string
	// BinDir and ConfDir are the directories of the container runtime.
	BinDir  string
	ConfDir string
	// Priority is two digits, the start of the name of the network configuration. Empty means DefaultPriority.
	Priority string
	// Socket is the path of the agent's socket.
	Socket string

	installed bool // programs are compared once per process, because the source is in the process's own image
}

// Install copies the programs that differ. Then it writes the network configuration, if that differs: its existence makes the runtime
// attach pods. Last, it removes configurations with other priorities. A running program keeps its old file.
func (p *Plugin) Install() error {
	if !p.installed {
		if err := errors.Join(removeUnfinished(p.BinDir, ""), removeUnfinished(p.ConfDir, ""), p.installPrograms()); err != nil {
			return err
		}
		p.installed = true
	}
	content, err := Config(p.Socket)
	if err != nil {
		return err
	}
	name := ConfigName(p.Priority)
	if err := replace(filepath.Join(p.ConfDir, name), bytes.NewReader(content), 0o644); err != nil {
		return err
	}
	return p.removeConfigs(name)
}

// removeConfigs removes the network configurations of all priorities, except the file keep.
func (p *Plugin) removeConfigs(keep string) error {
	paths, err := filepath.Glob(filepath.Join(p.ConfDir, "[0-9][0-9]"+configSuffix))
	for _, path := range paths {
		if filepath.Base(path) == keep {
			continue
		}
		if e := os.Remove(path); !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	if err != nil {
		return fmt.Errorf("remove network configurations: %w", err)
	}
	return nil
}

func (p *Plugin) installPrograms() error {
	entries, err := os.ReadDir(p.Source)
	if err != nil {
		return fmt.Errorf("list CNI plugins: %w", err)
	}
	for _, entry := range entries {
		if err := install(filepath.Join(p.Source, entry.Name()), filepath.Join(p.BinDir, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

// Config returns the network configuration list for an agent at socket. Every runtime in use supports cniVersion; newer ones may choose
// from cniVersions (CNI spec 1.1).
func Config(socket string) ([]byte, error) {
	content, err := json.MarshalIndent(map[string]any{
		"name":        NetworkName,
		"cniVersion":  "1.0.0",
		"cniVersions": []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"},
		"plugins": []map[string]any{
			{"type": "kube-ovn", "server_socket": socket, "provider": wire.DefaultProvider},
			{"type": "portmap", "capabilities": map[string]bool{"portMappings": true}},
		},
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode network configuration: %w", err)
	}
	return append(content, '\n'), nil
}
