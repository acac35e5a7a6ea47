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

// ConfigName is the file of the network configuration. The runtime uses the first file in lexical order.
const ConfigName = "01-kube-ovn.conflist"

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
	// Socket is the path of the agent's socket.
	Socket string

	installed bool // programs are compared once per process, because the source is in the process's own image
}

// Install copies the programs that differ. Then it writes the network configuration, if that differs: its existence makes the runtime
// attach pods. A running program keeps its old file.
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

// unfinished is the pattern of temporary file names. Runtimes do not use such files as configurations or plugins.
const unfinished = ".kiln-*"

// removeUnfinished removes temporary files of an agent that was killed.
func removeUnfinished(directory string) error {
	left, err := filepath.Glob(filepath.Join(directory, unfinished))
	for _, path := range left {
		err = errors.Join(err, os.Remove(path))
	}
	if err != nil {
		return fmt.Errorf("remove unfinished files of an installation: %w", err)
	}
	return nil
}

// replace atomically gives a file this content, if it has another.
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
