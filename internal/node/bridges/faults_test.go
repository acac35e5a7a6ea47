// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bridges

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/node/bridges/journal"
	"github.com/kiln-net/kiln/internal/node/providerbridge"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

// guarded runs the guard of an agent until the returned function is called.
func (p provided) guarded(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	guard := &journal.Guard{Directory: journal.DirectoryIn(p.options.RunDir), Log: supervisortest.Log(t), Grace: testGrace}
	done := make(chan error, 1)
	go func() { done <- guard.Run(ctx) }()
	return func() { cancel(); must.Succeed(t, <-done) }
}

// TestAStoppedProcessDoesNotCutTheNodeOff stops `kiln ovs` in a move, as SIGSTOP does, until the agent's guard has restored the interface, and then
// continues it. ovs-vswitchd runs all the time.
func TestAStoppedProcessDoesNotCutTheNodeOff(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	p := newProvided(t)
	for _, step := range []string{
		"attach eth1", "wait for eth1", "add 192.0.2.1/24 to br-net1", "remove 192.0.2.1/24 from eth1", "raise the shield of br-net1", "verify", "write journal Moved",
	} {
		if p.options.Datapath == v1alpha1.DatapathKernel && strings.HasPrefix(step, "raise") {
			continue
		}
		t.Run(step, func(t *testing.T) {
			cmd, ended, stop := p.start(t, processHalt+"="+step, processPause+"=1h")
			defer func() {
				if text := stop(); t.Failed() {
					t.Log(text)
				}
			}()
			p.Request(t, ended, wanted)
			halted := filepath.Join(p.options.RunDir, haltedFile)
			supervisortest.Eventually(t, "the process has come to the step", func() error { _, err := os.Stat(halted); return err })
			must.Succeed(t, cmd.Process.Signal(syscall.SIGSTOP))
			stopGuard := p.guarded(t)
			supervisortest.Eventually(t, "while it is stopped, the guard restores eth1", func() error {
				j, err := journal.DirectoryIn(p.options.RunDir).Read("br-net1")
				if err != nil || !j.Done {
					return errors.Join(fmt.Errorf("journal: %+v", j), err)
				}
				return p.restored()
			})
			supervisortest.Eventually(t, "while it is stopped, the gateway reaches the node", p.reached)
			must.Succeed(t, os.Remove(halted))
			must.Succeed(t, cmd.Process.Signal(syscall.SIGCONT))
			result := p.until(t, ended, providerbridge.StateFailed)
			if result.Reason != providerbridge.ReasonRolledBack || !strings.Contains(result.Message, "Attempt 2 begins at 20") {
				t.Errorf("result: %+v", result)
			}
			supervisortest.Eventually(t, "after it continued, eth1 is as before", p.restored)
			supervisortest.Eventually(t, "after it continued, the gateway reaches the node", p.reached)
			stopGuard()
			p.Request(t, ended, nil)
			supervisortest.Eventually(t, "the bridge is removed", func() error {
				results, _, err := p.Results(t, ended)
				return errors.Join(err, empty(results))
			})
		})
	}
}

func empty[V any](m map[string]V) error {
	if len(m) > 0 {
		return fmt.Errorf("there is %v", m)
	}
	return nil
}

// TestARestorationHoldsWhileTheSwitchRuns restores the interface while `kiln ovs` is stopped and ovs-vswitchd is not, with and without its database. In the
// kernel's datapath, ovs-vswitchd attaches the interface again as long as it has the port.
func TestARestorationHoldsWhileTheSwitchRuns(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	p := newProvided(t)
	for _, database := range []bool{true, false} {
		if !database && p.options.Datapath == v1alpha1.DatapathUserspace {
			continue // ovs-vswitchd still passes a copy of each packet to the bridge, so that two answers come
		}
		t.Run(fmt.Sprintf("database: %t", database), func(t *testing.T) {
			cmd, ended, stop := p.start(t)
			defer func() {
				if text := stop(); t.Failed() {
					t.Log(text)
				}
			}()
			p.Request(t, ended, wanted)
			p.until(t, ended, providerbridge.StateReady)
			must.Succeed(t, cmd.Process.Signal(syscall.SIGSTOP))
			if !database {
				must.Succeed(t, os.Rename(p.Socket(), p.Socket()+".away"))
			}
			directory := journal.DirectoryIn(p.options.RunDir)
			_, err := directory.Return(t.Context(), "br-net1", "test") // a guard completes it
			must.Succeed(t, err)
			stopGuard := p.guarded(t)
			supervisortest.Eventually(t, "eth1 is as before", p.restored)
			supervisortest.Eventually(t, "eth1 is no port, and the gateway reaches the node", func() error { return errors.Join(p.detached(), p.reached()) })
			for range 5 { // each change of an interface makes ovs-vswitchd look at its ports
				must.Succeed(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "other"}, PeerName: "others"}))
				must.Succeed(t, netlink.LinkDel(must.Value(netlink.LinkByName("other"))))
				must.Succeed(t, errors.Join(p.reached(), p.detached()))
			}
			stopGuard()
			if !database {
				must.Succeed(t, os.Rename(p.Socket()+".away", p.Socket()))
			}
			must.Succeed(t, cmd.Process.Signal(syscall.SIGCONT))
			p.until(t, ended, providerbridge.StateReady) // it moves again
			supervisortest.Eventually(t, "the gateway reaches the node again", p.reached)
			p.Request(t, ended, nil)
			supervisortest.Eventually(t, "eth1 is as before again", p.restored)
		})
	}
}

// detached returns an error if eth1 is a port in the kernel.
func (provided) detached() error {
	link, err := netlink.LinkByName("eth1")
	if err == nil && link.Attrs().MasterIndex != 0 {
		err = fmt.Errorf("eth1 is a port of interface %d", link.Attrs().MasterIndex)
	}
	return err
}

// TestAMoveBeginsAgainAfterAPowerCut ends everything in a move and after it, removes what a reboot removes, and starts again with the database that is left: it
// has the port, and port numbers of interfaces that do not exist.
func TestAMoveBeginsAgainAfterAPowerCut(t *testing.T) {
	if !nodetest.Again(t) {
		return
	}
	if testDatapath() == v1alpha1.DatapathKernel { // a test cannot restart the kernel
		t.Skip("the kernel's datapath stays until a real reboot")
	}
	p := newProvided(t)
	for _, complete := range []bool{false, true} {
		t.Run(fmt.Sprintf("complete: %t", complete), func(t *testing.T) {
			kill := 0
			if !complete {
				kill = 20
			}
			ended, stop := p.process(t, kill)
			p.Request(t, ended, wanted)
			if complete {
				p.until(t, ended, providerbridge.StateReady)
			} else {
				<-ended
			}
			stop()
			stopGuard := p.guarded(t) // the node's own configuration
			supervisortest.Eventually(t, "eth1 is as before", p.restored)
			stopGuard()
			for _, file := range must.Value(os.ReadDir(p.options.RunDir)) {
				must.Succeed(t, os.RemoveAll(filepath.Join(p.options.RunDir, file.Name())))
			}
			ended, stop = p.process(t, 0, processPause+"=1h")
			defer func() {
				if text := stop(); t.Failed() {
					t.Log(text)
				}
			}()
			supervisortest.Eventually(t, "eth1 moves again", func() error { // the database still has the result of the process before
				j, err := journal.DirectoryIn(p.options.RunDir).Read("br-net1")
				if err != nil || j == nil || j.Phase != journal.PhaseMoved {
					return errors.Join(fmt.Errorf("journal: %+v", j), err)
				}
				if j.Failures != 0 {
					t.Errorf("a move failed: %+v", j)
				}
				return nil
			})
			p.until(t, ended, providerbridge.StateReady)
			supervisortest.Eventually(t, "the gateway reaches the node", p.reached)
			p.Request(t, ended, nil)
			supervisortest.Eventually(t, "eth1 is as before", p.restored)
		})
	}
}

// TestAnAPIServerThatIsDownBlocksNothing moves with an API server that does not answer, before the move and after it.
func TestAnAPIServerThatIsDownBlocksNothing(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	p := newProvided(t)
	ended, stop := p.process(t, 0, processAPIServer+"=198.51.100.7:6443")
	defer func() {
		if text := stop(); t.Failed() {
			t.Log(text)
		}
	}()
	p.Request(t, ended, wanted)
	p.until(t, ended, providerbridge.StateReady)
	supervisortest.Eventually(t, "the gateway reaches the node", p.reached)
}
