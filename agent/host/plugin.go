// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kiln-net/kiln/cni/wire"
)

// ConfigName is the network configuration's file. The runtime takes the first by name.
const ConfigName = "01-kube-ovn.conflist"

// NetworkName is the network's name in its configuration.
const NetworkName = "kube-ovn"

// Plugin is what the container runtime needs to call the agent. It is never removed: while the agent is away, the plugin says so.
type Plugin struct {
	// Source is the directory of plugins in the agent's image.
	Source string
	// BinDir and ConfDir are the container runtime's.
	BinDir  string
	ConfDir string
	// Socket of the agent.
	Socket string

	installed bool // programs are compared once in a process: the source is in its own image
}

// Install copies the programs that differ, then writes the network configuration if that does: its appearance is the sign that pods
// can be attached. A program in execution keeps its file.
func (p *Plugin) Install() error {
	if !p.installed {
		if err := errors.Join(removeUnfinished(p.BinDir), removeUnfinished(p.ConfDir), p.installPrograms()); err != nil {
			return err
		}
		p.installed = true
	}
	content, err := Config(p.Socket)
	if err != nil {
		return err
	}
	return replace(filepath.Join(p.ConfDir, ConfigName), content, 0o644)
}

func (p *Plugin) installPrograms() error {
	entries, err := os.ReadDir(p.Source)
	if err != nil {
		return fmt.Errorf("list CNI plugins: %w", err)
	}
	for _, entry := range entries {
		content, err := os.ReadFile(filepath.Join(p.Source, entry.Name()))
		if err != nil {
			return fmt.Errorf("read CNI plugin: %w", err)
		}
		if err := replace(filepath.Join(p.BinDir, entry.Name()), content, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// Config is the network configuration list for an agent at socket. cniVersion is what every runtime in use takes; cniVersions lets
// newer ones choose (CNI spec 1.1).
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

// unfinished is the name of what has not got its own yet: no runtime takes it for a configuration or a plugin.
const unfinished = ".kiln-*"

// removeUnfinished takes away what an agent left that was killed.
func removeUnfinished(directory string) error {
	left, err := filepath.Glob(filepath.Join(directory, unfinished))
	for _, path := range left {
		err = errors.Join(err, os.Remove(path))
	}
	if err != nil {
		return fmt.Errorf("remove what was not installed to the end: %w", err)
	}
	return nil
}

// replace makes a file have this content, all at once, if it has another.
func replace(path string, content []byte, mode fs.FileMode) (err error) {
	have, err := os.ReadFile(path)
	if err == nil && bytes.Equal(have, content) {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read installed file: %w", err)
	}
	fresh, err := os.CreateTemp(filepath.Dir(path), unfinished)
	if err != nil {
		return fmt.Errorf("install %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("install %s: %w", path, err), os.Remove(fresh.Name()))
		}
	}()
	if _, err := fresh.Write(content); err != nil {
		return errors.Join(err, fresh.Close())
	}
	if err := errors.Join(fresh.Chmod(mode), fresh.Sync(), fresh.Close()); err != nil {
		return err
	}
	return os.Rename(fresh.Name(), path)
}
