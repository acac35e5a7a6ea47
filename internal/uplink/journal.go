// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package uplink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
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
	Bridge string `json:"bridge"`
	Uplink string `json:"uplink"`
	// Kernel is set in the kernel's datapath, from which the interface has to be detached.
	Kernel bool `json:"kernel,omitempty"`
	// Attempt identifies the request and the interface's configuration. A move that was undone is not repeated for the same attempt, unless Retry is set.
	Attempt string `json:"attempt,omitempty"`
	Retry   bool   `json:"retry,omitempty"`
	// Interruptions counts the ends of a process during this attempt.
	Interruptions int   `json:"interruptions,omitempty"`
	Phase         Phase `json:"phase"`
	// Deadline of PhaseTrial, since the boot of the node.
	Deadline time.Duration `json:"deadline,omitempty"`
	// Before is the state of the interface before the move. Addresses that the interface gets later are added.
	Before State `json:"before"`
	// Targets answered before the move.
	Targets []Target `json:"targets,omitempty"`
	// Cause is why everything was put back. Done is set once it was.
	Cause string `json:"cause,omitempty"`
	Done  bool   `json:"done,omitempty"`
}

// Left returns the time until the deadline.
func (j Journal) Left() time.Duration { return j.Deadline - sinceBoot() }

// Deadline returns the deadline of a trial that begins now.
func Deadline(after time.Duration) time.Duration { return sinceBoot() + after }

// MaxInterruptions is how often a move is begun again after the process ended during it.
const MaxInterruptions = 3

// ErrReturned means that the move was undone: by the guard of another process, or at the deadline.
var ErrReturned = errors.New("the move was undone")

// lockTimeout is the longest wait for another process that changes the same interfaces. A process that holds the lock for longer hangs.
const lockTimeout = 5 * time.Second

// Directory holds the journals of a node. It is in a directory that a reboot empties, together with the state of the kernel.
type Directory struct {
	Path string
	Step Step
}

// DirectoryIn returns the directory of journals in Open vSwitch's runtime directory, which `kiln ovs` and the agent share.
func DirectoryIn(runDir string) Directory {
	return Directory{Path: filepath.Join(runDir, "kiln-uplinks")}
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
	d.Step.Before("write journal " + string(j.Phase))
	fresh := d.file(j.Bridge) + ".new"
	if err := errors.Join(os.MkdirAll(d.Path, 0o700), os.WriteFile(fresh, text, 0o600)); err != nil {
		return fmt.Errorf("write the journal of bridge %s: %w", j.Bridge, err)
	}
	if err := os.Rename(fresh, d.file(j.Bridge)); err != nil {
		return fmt.Errorf("write the journal of bridge %s: %w", j.Bridge, err)
	}
	return nil
}

// Remove deletes the journal of a bridge.
func (d Directory) Remove(bridge string) error {
	d.Step.Before("remove journal")
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
	case <-timer.C: // its holder hangs, and will not take another step
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
	return d.locked(ctx, func() error { return d.write(&j) })
}

// Commit ends the trial of a move whose targets have answered. It returns ErrReturned if the move was undone before.
func (d Directory) Commit(ctx context.Context, bridge string) error {
	return d.update(ctx, bridge, func(j *Journal) error {
		j.Phase = PhaseMoved
		return d.write(j)
	})
}

// update calls f with the journal of a move that was not undone.
func (d Directory) update(ctx context.Context, bridge string, f func(*Journal) error) error {
	return d.locked(ctx, func() error {
		j, err := d.Read(bridge)
		if err != nil {
			return err
		}
		if j == nil || j.Phase == PhaseReturned {
			return ErrReturned
		}
		return f(j)
	})
}

// Move moves what the interface has to the bridge, as far as it is not there yet. Entries that are not in the journal are written to it first.
// It returns the number of addresses that the bridge has taken over.
func (d Directory) Move(ctx context.Context, bridge string) (moved int, err error) {
	err = d.update(ctx, bridge, func(j *Journal) error {
		link, to, err := d.links(j)
		if err != nil {
			return err
		}
		seen, err := observeAll(link, to, j.Before)
		if err != nil {
			return err
		}
		plan := Plan(j.Uplink, Memory{Uplink: j.Uplink, Addresses: j.Before.Addresses, Routes: j.Before.Routes}, seen)
		grown := len(without(plan.Memory.Addresses, j.Before.Addresses))+len(without(plan.Memory.Routes, j.Before.Routes)) > 0
		j.Before.Addresses, j.Before.Routes = plan.Memory.Addresses, plan.Memory.Routes
		if grown {
			if err := d.write(j); err != nil {
				return err
			}
		}
		if len(plan.AddAddresses) > 0 {
			plan.AddNeighbours = j.Before.Neighbours
		}
		moved = len(plan.Memory.Addresses)
		return Apply(plan, link, to, d.Step)
	})
	return moved, err
}

func (Directory) links(j *Journal) (uplink, bridge netlink.Link, err error) {
	if uplink, err = Link(j.Uplink); err != nil {
		return nil, nil, err
	}
	if bridge, err = Link(j.Bridge); err != nil {
		return nil, nil, err
	}
	for name, link := range map[string]netlink.Link{j.Uplink: uplink, j.Bridge: bridge} {
		if link == nil {
			return nil, nil, fmt.Errorf("interface %s does not exist", name)
		}
	}
	return uplink, bridge, nil
}

func observeAll(uplink, bridge netlink.Link, before State) (Observed, error) {
	from, err := configuration(uplink)
	if err != nil {
		return Observed{}, err
	}
	to, err := configuration(bridge)
	wide := wideFamilies(append(slices.Clone(before.Addresses), to.Addresses...))
	from.Addresses = slices.DeleteFunc(from.Addresses, func(a Address) bool { return a.virtual(wide) && !contains(before.Addresses, a) })
	return Observed{UplinkAddresses: from.Addresses, UplinkRoutes: from.Routes, BridgeAddresses: to.Addresses, BridgeRoutes: to.Routes}, err
}

// Return records that a move must be undone, for which PutBack or a guard is responsible then. It returns the journal; nil if there is none.
func (d Directory) Return(ctx context.Context, bridge, cause string, retry bool) (j *Journal, err error) {
	err = d.locked(ctx, func() error {
		if j, err = d.Read(bridge); err != nil || j == nil {
			return err
		}
		return d.markReturned(j, cause, retry)
	})
	return j, err
}

func (d Directory) markReturned(j *Journal, cause string, retry bool) error {
	if j.Phase == PhaseReturned {
		return nil
	}
	j.Phase, j.Cause, j.Retry = PhaseReturned, cause, retry
	return d.write(j)
}

// PutBack restores the interface of a bridge: addresses, routes, neighbours and MTU. It needs neither Open vSwitch nor its database. The
// caller removes the port from the bridge in the database, otherwise ovs-vswitchd attaches the interface again.
func (d Directory) PutBack(ctx context.Context, bridge, cause string, retry bool) error {
	return d.putBackIf(ctx, bridge, func(*Journal) (string, bool, bool) { return cause, retry, true })
}

// putBackIf restores the interface if, while no other process changes it, the condition is true.
func (d Directory) putBackIf(ctx context.Context, bridge string, is func(*Journal) (cause string, retry, is bool)) error {
	return d.locked(ctx, func() error {
		j, err := d.Read(bridge)
		if err != nil || j == nil || j.Done {
			return err
		}
		cause, retry, is := is(j)
		if !is {
			return nil
		}
		if err := d.markReturned(j, cause, retry); err != nil {
			return err
		}
		if err := d.restore(ctx, j); err != nil {
			return err
		}
		j.Done = true
		return d.write(j)
	})
}

// restore gives everything back, even if the interface cannot be freed: then it is not complete, and tried again.
func (d Directory) restore(ctx context.Context, j *Journal) error {
	freed := d.free(ctx, j)
	link, err := Link(j.Uplink)
	if err != nil || link == nil { // without the interface there is nothing to give the addresses back to
		return errors.Join(freed, err)
	}
	bridge, err := Link(j.Bridge)
	if err != nil {
		return errors.Join(freed, err)
	}
	return errors.Join(freed, d.giveBack(j.Before, link, bridge))
}

// free makes the node's own stack receive the packets that arrive at the interface.
func (d Directory) free(ctx context.Context, j *Journal) error {
	if j.Kernel {
		d.Step.Before("detach " + j.Uplink)
		return detach(j.Uplink)
	}
	d.Step.Before("drop the shield of " + j.Bridge)
	return ShieldOf(j.Bridge).Drop(ctx)
}

// giveBack adds the state to the interface before it removes it from the bridge, so that the node always has its addresses.
func (d Directory) giveBack(before State, link, bridge netlink.Link) error {
	if len(before.Addresses) > 0 {
		if err := setUp(link, d.Step); err != nil {
			return err
		}
	}
	has, err := configuration(link)
	if err != nil {
		return err
	}
	for _, a := range asAdded(without(before.Addresses, has.Addresses)) {
		if err := addAddress(link, a, d.Step); err != nil {
			return err
		}
	}
	addNeighbours(link, before.Neighbours, d.Step)
	if err := d.giveRoutes(before, link); err != nil {
		return err
	}
	if bridge != nil {
		if err := errors.Join(removeRoutes(bridge, before.Routes, d.Step), RemoveAddresses(bridge, before.Addresses, d.Step)); err != nil {
			return err
		}
	}
	if before.MTU != 0 && link.Attrs().MTU != before.MTU {
		if err := netlink.LinkSetMTU(link, before.MTU); err != nil {
			return fmt.Errorf("set the MTU of %s: %w", link.Attrs().Name, err)
		}
	}
	return d.giveRoutes(before, link) // the kernel removed routes whose source was the bridge's address for a moment
}

func (d Directory) giveRoutes(before State, link netlink.Link) error {
	has, err := configuration(link)
	if err != nil {
		return err
	}
	for _, r := range without(before.Routes, has.Routes) {
		if err := addRoute(link, r, d.Step); err != nil {
			return err
		}
	}
	return nil
}
