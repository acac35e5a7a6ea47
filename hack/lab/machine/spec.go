// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package machine runs the lab's machines: process trees with their own root file system, host name, process IDs and network. A
// machine is one init process with its own namespaces. When that process dies, the kernel ends all processes in the machine,
// including containers, and removes its mounts.
package machine

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// Spec describes a machine.
type Spec struct {
	// Name is the machine's host name.
	Name string `json:"name"`
	// Netns is the path of the network namespace it lives in.
	Netns string `json:"netns"`
	// Base is the read-only root file system below the machine's own files.
	Base string `json:"base"`
	// Dir holds the files that the machine writes to its root file system (see Upper), and the mount point of that file system.
	Dir string `json:"dir"`
	// Binds are directories of the host that appear in the machine.
	Binds []Bind `json:"binds,omitempty"`
	// Programs are started in this order and restarted whenever they end.
	Programs []Program `json:"programs,omitempty"`
}

// Bind mounts a directory of the host, created if it is missing, on a directory of the machine.
type Bind struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"readOnly,omitempty"`
}

// Program is a daemon of a machine. Its output goes to /var/log/<Name>.log.
type Program struct {
	Name string   `json:"name"`
	Args []string `json:"args"` // the program, absolute or looked up in Path, and its arguments
	// After lists endpoints, "unix:/path" or "tcp:host:port", that must accept connections before the program starts.
	After []string `json:"after,omitempty"`
}

// Path is the PATH variable of programs and commands in a machine. The programs built by prepare are in /usr/local/bin.
const Path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// specFile is the path of the specification inside the machine.
const specFile = "/etc/lab/machine.json"

// Upper is the host directory with the machine's own files of its root file system (the overlay's upper layer). Files may be
// written there before the machine starts; afterwards they must be written from inside the machine.
func (s Spec) Upper() string { return filepath.Join(s.Dir, "upper") }

func (s Spec) work() string { return filepath.Join(s.Dir, "work") }
func (s Spec) root() string { return filepath.Join(s.Dir, "root") }

func (s Spec) write() error {
	raw, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the specification of machine %s: %w", s.Name, err)
	}
	return WriteFile(filepath.Join(s.Upper(), specFile), raw, 0o644)
}

func readSpec(path string) (Spec, error) {
	var s Spec
	raw, err := os.ReadFile(path)
	if err != nil {
		return s, fmt.Errorf("read the machine's specification: %w", err)
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return s, fmt.Errorf("decode the machine's specification %s: %w", path, err)
	}
	return s, nil
}

// WriteFile writes a file and makes the directories above it.
func WriteFile(path string, content []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make the directory of %s: %w", path, err)
	}
	if err := os.WriteFile(path, content, mode); err != nil {
		return fmt.Errorf("write file: %w", err)
	}
	return nil
}
