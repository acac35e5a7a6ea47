// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package guest runs a lab in a kernel of its own: User Mode Linux, one process of the host without rights in the host's kernel except the
// files that it may read. The kernel has what the host's may lack, above all Open vSwitch's datapath, so that the lab's nodes use it as
// production clusters do.
//
// The guest's root file system is the host's, read-only, so that every program of the host and of the repository is there under its own
// path. The cache and the state of the lab lie on a disk of the guest. The lab's own program is the guest's init. Commands come in by SSH,
// over a network link with the host alone.
package guest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/kiln-net/kiln/hack/lab/machine"
)

// The hidden subcommands of the lab's program that run in the guest, and the process that watches over it on the host.
const (
	InitCommand    = "guest-init"
	ServeCommand   = "guest-serve"
	MonitorCommand = "guest-monitor"
)

// Link is the host's interface to the guest: one end of a pair. The guest's kernel reads and writes packets at the other end.
const (
	Link     = "kiln-guest"
	guestEnd = "kiln-guest-end"
)

// The link's addresses, in a network that the lab's address plan does not use.
var (
	hostAddress  = netip.MustParsePrefix("172.30.1.1/30")
	guestAddress = netip.MustParsePrefix("172.30.1.2/30")
)

const sshPort = 22

// Dir is the directory of a guest on the host.
type Dir string

func (d Dir) path(name string) string { return filepath.Join(string(d), name) }

// Files in the directory.
const (
	stateFile   = "guest.json"
	specFile    = "spec.json"
	consoleFile = "console.log"
	overlayFile = "disk.cow" // what the guest has written to its disk
	programFile = "lab"
	hostKey     = "ssh_host_key" // PEM, as the following
	userKey     = "ssh_user_key"
	mountPoint  = "disk" // of the guest's disk, in the guest
	ended       = "ended"
)

// Console is the log of the guest's kernel and of its init.
func (d Dir) Console() string { return d.path(consoleFile) }

// Program is the path of the lab's program in the guest and on the host.
func (d Dir) Program() string { return d.path(programFile) }

// cache and state are the directories of the cache and of the lab in the guest. They lie on one mount, so that nodes can share files of the
// cache by hard links.
func (d Dir) cache() string { return filepath.Join(d.path(mountPoint), "cache") }

func (d Dir) state() string { return filepath.Join(d.path(mountPoint), "state") }

// spec is what the guest's init has to know.
type spec struct {
	Dir       Dir            `json:"dir"`
	Address   netip.AddrPort `json:"address"`   // of the server of commands
	Writable  []string       `json:"writable"`  // directories of the host that the guest may write to
	HostKey   string         `json:"hostKey"`   // PEM, PKCS 8
	UserKey   string         `json:"userKey"`   // the key that may log in, as in authorized_keys
	HostCache string         `json:"hostCache"` // what the disk lacks of the cache is read there
}

// state is what later commands have to know of a guest that was started.
type state struct {
	Monitor machine.Process `json:"monitor"`
	// Mappings is the number for restoreMappings.
	Mappings int `json:"mappings,omitempty"`
}

func (d Dir) load() (s state, there bool, err error) {
	raw, err := os.ReadFile(d.path(stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return s, false, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &s)
	}
	if err != nil {
		return s, false, fmt.Errorf("read the state of the lab's guest: %w", err)
	}
	return s, true, nil
}

func (d Dir) save(name string, v any) error {
	raw, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	return machine.WriteFile(d.path(name), raw, 0o600)
}
