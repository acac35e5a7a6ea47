// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package machine runs the lab's machines: trees of processes with their own root file system, host name, process IDs and
// network. A machine is one init process with namespaces of its own; when that process dies the kernel ends everything in it,
// containers included, and its mounts go with it.
package machine

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// Spec says what a machine is made of.
type Spec struct {
	// Name is the machine's host name.
	Name string `json:"name"`
	// Netns is the path of the network namespace it lives in.
	Netns string `json:"netns"`
	// Base is the root file system below the machine's own files. It is never written to.
	Base string `json:"base"`
	// Dir holds what the machine writes to its root file system (see Upper) and the point where it is put together.
	Dir string `json:"dir"`
	// Binds are directories of the host that appear in the machine.
	Binds []Bind `json:"binds,omitempty"`
	// Programs are started in this order and started again whenever they end.
	Programs []Program `json:"programs,omitempty"`
}

// Bind is a directory of the host, made if it is not there, as a directory of the machine.
type Bind struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"readOnly,omitempty"`
}

// Program is a daemon of a machine. Its output goes to /var/log/<Name>.log.
type Program struct {
	Name string   `json:"name"`
	Args []string `json:"args"` // the program's path, absolute or to be found in Path, and its arguments
	// After are endpoints, in the form "unix:/path" or "tcp:host:port", that have to take connections before the program starts.
	After []string `json:"after,omitempty"`
}

// Path is what programs and commands of a machine have in the environment as PATH. The programs built by prepare are in
// /usr/local/bin.
const Path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// specFile is where the specification lies inside the machine.
const specFile = "/etc/lab/machine.json"

// Upper is the directory of the host that holds the machine's own files of its root file system. Files written there before
// the machine starts are in it from the beginning; afterwards they must be written from inside.
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
