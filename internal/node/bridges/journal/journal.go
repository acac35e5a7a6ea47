// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package journal records the moves of interfaces to bridges on disk, carries them out step by step, and undoes them whatever process ended.
package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/internal/node/bridges/kernel"
	"github.com/kiln-net/kiln/internal/node/bridges/renewal"
	"github.com/kiln-net/kiln/internal/node/bridges/targets"
)

// Phase of a move.
type Phase string

// Values of Phase.
const (
	PhaseTrial    Phase = "Trial"    // the targets must answer until the deadline
	PhaseMoved    Phase = "Moved"    // the targets have answered, or nothing had to be moved
	PhaseReturned Phase = "Returned" // the interface has everything back, or gets it back now
)

// Journal is the record of one move. It is on disk before the first change, and says how to undo all of them.
type Journal struct {
	// ID distinguishes moves of a bridge. Begin sets it.
	ID     time.Duration `json:"id"`
	Bridge string        `json:"bridge"`
	Uplink string        `json:"uplink"`
	// Kernel is set in the kernel's datapath, from which the interface has to be detached.
	Kernel bool `json:"kernel,omitempty"`
	// Attempt identifies the request and the interface. Failures counts the moves of this attempt that were undone, the last one at the time Undone.
	Attempt  string    `json:"attempt,omitempty"`
	Failures int       `json:"failures,omitempty"`
	Undone   time.Time `json:"undone,omitzero"`
	Phase    Phase     `json:"phase"`
	// Since is when the phase began, since the boot of the node.
	Since time.Duration `json:"since,omitempty"`
	// Deadline of PhaseTrial, since the boot of the node.
	Deadline time.Duration `json:"deadline,omitempty"`
	// Before is the state of the interface before the move. Entries that the interface gets later are added, and those that were removed from the bridge
	// are removed.
	Before kernel.State `json:"before"`
	// Complete is the index of the bridge's interface that has everything.
	Complete int `json:"complete,omitempty"`
	// Renewals are how addresses and routes in Before with a limited lifetime are renewed.
	Renewals []renewal.Renewal `json:"leases,omitempty"`
	// Targets answered before the move.
	Targets []targets.Target `json:"targets,omitempty"`
	// Cause is why everything was put back. Done is set once it was.
	Cause string `json:"cause,omitempty"`
	Done  bool   `json:"done,omitempty"`
}

// Left returns the time until the deadline.
func (j Journal) Left() time.Duration { return j.Deadline - kernel.SinceBoot() }

// Deadline returns the deadline of a trial that begins now.
func Deadline(after time.Duration) time.Duration { return kernel.SinceBoot() + after }

// settled is the age of a completed move from which on its failures are forgotten, and its own end is none.
const settled = 10 * time.Minute

// ErrReturned means that the move was undone: by the guard of another process, or at the deadline.
var ErrReturned = errors.New("the move was undone")

// errBegunAgain means that the interface moves again, so that its restoration must end.
var errBegunAgain = errors.New("the interface moves again")

// errNotOurs means that another program has made the interface a port of its own bridge.
var errNotOurs = errors.New("the interface is a port of another bridge")

// errNotWritten means that the file system of the journals is full or damaged.
var errNotWritten = errors.New("write the journal")

// lockTimeout is the longest wait for another process that changes the same interfaces. A process that holds the lock for longer hangs. If it continues, it
// finds in the journal that it may not. Tests shorten it.
var lockTimeout = 5 * time.Second

// Directory holds the journals of a node. It is in a directory that a reboot empties, together with the state of the kernel.
type Directory struct {
	Path string
	// RunDir has the sockets of Open vSwitch; empty in tests without it.
	RunDir string
	// Sysctls is a writable /proc/sys/net; empty for that directory itself.
	Sysctls string
	Step    kernel.Step
	// Log has the routes that a restoration could not add. Optional.
	Log logr.Logger
}

// DirectoryIn returns the directory of journals in Open vSwitch's runtime directory, which `kiln ovs` and the agent share.
func DirectoryIn(runDir string) Directory {
	return Directory{Path: filepath.Join(runDir, "kiln-uplinks"), RunDir: runDir}
}

const suffix = ".json"

func (d Directory) file(bridge string) string { return filepath.Join(d.Path, bridge+suffix) }

// Read returns the journal of a bridge; nil if there is none.
func (d Directory) Read(bridge string) (*Journal, error) {
	text, err := os.ReadFile(d.file(bridge))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil //nolint:nilnil // no journal is a state, not a failure
	}
	if err != nil {
		return nil, fmt.Errorf("read the journal of bridge %s: %w", bridge, err)
	}
	var j Journal
	if err := json.Unmarshal(text, &j); err != nil {
		return nil, fmt.Errorf("decode the journal of bridge %s: %w", bridge, err)
	}
	return &j, nil
}

// List returns the names of bridges with a journal.
func (d Directory) List() ([]string, error) {
	entries, err := os.ReadDir(d.Path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list journals: %w", err)
	}
	var bridges []string
	for _, e := range entries {
		if bridge, found := strings.CutSuffix(e.Name(), suffix); found {
			bridges = append(bridges, bridge)
		}
	}
	return bridges, nil
}

// write replaces the journal in one step.
func (d Directory) write(j *Journal) error {
	text, err := json.Marshal(j)
	if err != nil {
		return fmt.Errorf("encode the journal of bridge %s: %w", j.Bridge, err)
	}
	if err := d.Step.Before("write journal " + string(j.Phase)); err != nil {
		return err
	}
	if err := d.current(j); err != nil {
		return err
	}
	fresh := d.file(j.Bridge) + ".new"
	err = errors.Join(os.MkdirAll(d.Path, 0o700), os.WriteFile(fresh, text, 0o600))
	if err == nil {
		err = os.Rename(fresh, d.file(j.Bridge))
	}
	if err != nil {
		return fmt.Errorf("%w of bridge %s: %w", errNotWritten, j.Bridge, err)
	}
	return nil
}

// Remove deletes the journal of a bridge.
func (d Directory) Remove(bridge string) error {
	if err := d.Step.Before("remove journal"); err != nil {
		return err
	}
	if err := os.Remove(d.file(bridge)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the journal of bridge %s: %w", bridge, err)
	}
	return nil
}

// locked calls f while no other process of Kiln changes interfaces.
func (d Directory) locked(ctx context.Context, f func() error) error {
	if err := os.MkdirAll(d.Path, 0o700); err != nil {
		return fmt.Errorf("make the directory of journals: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(d.Path, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("lock the journals: %w", err)
	}
	held := make(chan error, 1)
	go func() { held <- unix.Flock(int(file.Fd()), unix.LOCK_EX) }()
	timer := time.NewTimer(lockTimeout)
	defer timer.Stop()
	select {
	case err = <-held:
		defer file.Close() // ends the lock
	case <-timer.C: // its holder hangs
		go func() { _ = errors.Join(<-held, file.Close()) }()
	case <-ctx.Done():
		go func() { _ = errors.Join(<-held, file.Close()) }()
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("lock the journals: %w", err)
	}
	return f()
}

// Begin writes the journal of a new move.
func (d Directory) Begin(ctx context.Context, j Journal) error {
	return d.locked(ctx, func() error {
		j.Since = kernel.SinceBoot()
		j.ID = j.Since
		return d.write(&j)
	})
}

// Commit ends the trial of a move whose targets have answered. It returns ErrReturned if the move was undone before.
func (d Directory) Commit(ctx context.Context, bridge string) error {
	return d.update(ctx, bridge, func(j *Journal, _ kernel.Step) error {
		j.Phase, j.Since = PhaseMoved, kernel.SinceBoot()
		return d.write(j)
	})
}

// While calls f, a step of a move, unless the move was undone. If it was undone during the step, it is undone again.
func (d Directory) While(ctx context.Context, bridge, name string, f func() error) error {
	return d.update(ctx, bridge, func(_ *Journal, step kernel.Step) error {
		if err := step.Before(name); err != nil {
			return err
		}
		return f()
	})
}

// update calls f with the journal of a move that was not undone, and with what f calls before each step. This process can be stopped in f, and then
// another one takes it for dead and undoes the move. f ends at its next step, and what the step before it has changed is undone again.
func (d Directory) update(ctx context.Context, bridge string, f func(*Journal, kernel.Step) error) error {
	return d.locked(ctx, func() error {
		j, err := d.Read(bridge)
		if err != nil {
			return err
		}
		if j == nil || j.Phase == PhaseReturned {
			return ErrReturned
		}
		err = f(j, d.checked(j))
		now, readErr := d.Read(bridge)
		if readErr != nil || now == nil || now.Phase != PhaseReturned {
			return errors.Join(err, readErr)
		}
		return errors.Join(ErrReturned, d.restore(ctx, now))
	})
}

// checked returns d.Step with a check that the journal is current.
func (d Directory) checked(j *Journal) kernel.Step {
	return func(name string) error {
		if err := d.Step.Before(name); err != nil {
			return err
		}
		return d.current(j)
	}
}

// current returns an error if another process has changed the course of a move whose journal this process has read.
func (d Directory) current(j *Journal) error {
	now, err := d.Read(j.Bridge)
	switch {
	case err != nil:
		return err
	case now == nil:
		return nil
	case now.ID > j.ID:
		return errBegunAgain
	case now.ID == j.ID && now.Phase == PhaseReturned && j.Phase != PhaseReturned:
		return ErrReturned
	}
	return nil
}

// Move moves what the interface has to the bridge, as far as it is not there yet. Entries that are not in the journal are written to it first, and those
// that are no longer on a complete bridge are removed from it. It returns the number of addresses that the bridge has taken over.
func (d Directory) Move(ctx context.Context, bridge string) (moved int, err error) {
	err = d.update(ctx, bridge, func(j *Journal, step kernel.Step) error {
		link, to, err := d.links(j)
		if err != nil {
			return err
		}
		seen, err := kernel.ObserveMove(link, to, j.Before)
		if err != nil {
			return err
		}
		index := to.Attrs().Index
		known := j.Before.Follow(seen, j.Phase == PhaseMoved && j.Complete == index && to.Attrs().Flags&net.FlagUp != 0)
		plan := kernel.Plan(j.Uplink, kernel.Memory{Uplink: j.Uplink, Addresses: known.Addresses, Routes: known.Routes}, seen)
		if !slices.Equal(j.Before.Addresses, plan.Memory.Addresses) || !slices.Equal(j.Before.Routes, plan.Memory.Routes) {
			j.Before.Addresses, j.Before.Routes = plan.Memory.Addresses, plan.Memory.Routes
			if err := d.write(j); err != nil {
				return err
			}
		}
		if len(plan.AddAddresses) > 0 {
			plan.AddNeighbours = j.Before.Neighbours
			if j.Complete != 0 { // long ago: others can have changed since
				plan.AddNeighbours = j.Before.Permanent()
			}
		}
		moved = len(plan.Memory.Addresses)
		if j.Complete != index {
			if err := kernel.WriteSettings(d.Sysctls, j.bridgeSettings(), j.Bridge, step); err != nil {
				return err
			}
		}
		if err := kernel.Apply(plan, link, to, step); err != nil || j.Complete == index {
			return err
		}
		j.Complete = index
		return d.write(j)
	})
	return moved, err
}

func (Directory) links(j *Journal) (uplink, bridge netlink.Link, err error) {
	if uplink, err = kernel.Link(j.Uplink); err != nil {
		return nil, nil, err
	}
	if bridge, err = kernel.Link(j.Bridge); err != nil {
		return nil, nil, err
	}
	for name, link := range map[string]netlink.Link{j.Uplink: uplink, j.Bridge: bridge} {
		if link == nil {
			return nil, nil, fmt.Errorf("interface %s does not exist", name)
		}
	}
	return uplink, bridge, nil
}

// Prepare sets the interface of a bridge up, with the settings of an interface that may move to it.
func (d Directory) Prepare(bridge string, before kernel.State) error {
	return kernel.Prepare(d.Sysctls, bridge, before, d.Step)
}

// Stranded returns the addresses that the interface of a bridge has got since the move and that stay on it, where the network does not reach them.
func (d Directory) Stranded(bridge string) ([]netip.Prefix, error) {
	j, err := d.Read(bridge)
	if err != nil || j == nil {
		return nil, err
	}
	uplink, to, err := d.links(j)
	if err != nil {
		return nil, err
	}
	return kernel.StrandedAfter(uplink, to, j.Before)
}
