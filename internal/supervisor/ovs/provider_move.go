// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/internal/ovsdb/client"
	"github.com/kiln-net/kiln/internal/ovsdb/vswitch"
	"github.com/kiln-net/kiln/internal/providerbridge"
	"github.com/kiln-net/kiln/internal/supervisor"
	"github.com/kiln-net/kiln/internal/uplink"
)

// ensure makes the bridge of a provider network. user is the provider network that has the interface already, if any.
func (p *providers) ensure(ctx context.Context, db *client.Client, provider string, q providerbridge.Request, user string) providerbridge.Result {
	bridge := providerbridge.Bridge(provider)
	if refused := p.conflict(ctx, db, provider, q, user); refused.State != "" {
		return refused
	}
	j, err := p.directory.Read(bridge)
	if err != nil {
		return failure(err)
	}
	if cause := unwanted(j, q); cause != "" {
		if err := p.release(ctx, db, provider, cause); err != nil {
			return failure(err)
		}
		j = nil
	}
	if err := createVLAN(bridge, q); err != nil {
		return failure(err)
	}
	if p.sharesTunnels(q) {
		return p.share(ctx, db, provider, q)
	}
	if err := stopSharing(ctx, db, provider); err != nil {
		return failure(err)
	}
	if j != nil && j.Phase == uplink.PhaseMoved {
		return p.keep(ctx, db, provider, q)
	}
	// The port goes before anything else, because ovs-vswitchd attaches the interface again as long as it is there.
	if err := detachPort(ctx, db, bridge, q.Interface); err != nil {
		return failure(err)
	}
	if j != nil && !j.Done { // a trial of a process that ended, or a restoration that was interrupted
		if err := p.directory.PutBack(ctx, bridge, "the move was interrupted"); err != nil {
			return failure(err)
		}
		if j, err = p.directory.Read(bridge); err != nil {
			return failure(err)
		}
	}
	if err := deleteCreated(func(of, name string) bool { return of != bridge || name == q.Interface }); err != nil { // of a former specification
		return failure(err)
	}
	link, refused := p.suitable(q)
	if refused.State != "" {
		return refused
	}
	state, err := uplink.Read(link)
	if err != nil {
		return failure(err)
	}
	next := uplink.Journal{
		Bridge: bridge, Uplink: q.Interface, Kernel: p.kernel(), Attempt: attemptOf(q, link), Before: state, Phase: uplink.PhaseMoved,
	}
	if j != nil && j.Attempt == next.Attempt {
		next.Failures, next.Undone, next.Cause = j.Failures, j.Undone, j.Cause
	}
	if left := pause(&next); left > 0 && state.Needed() != "" { // otherwise nothing can be lost
		p.wake(left)
		return undone(&next)
	}
	if old, found := p.refused[provider]; found && old.attempt == next.Attempt && q.Turn == old.turn && time.Since(old.at) < unreachableRetry {
		p.wake(unreachableRetry - time.Since(old.at))
		return old.result
	}
	result := p.begin(ctx, db, provider, q, link, next)
	delete(p.refused, provider)
	if slices.Contains([]providerbridge.Reason{providerbridge.ReasonUnreachable, providerbridge.ReasonAwaitingTurn, providerbridge.ReasonNamed}, result.Reason) {
		p.refused[provider] = refusal{attempt: next.Attempt, turn: q.Turn, at: time.Now(), result: result}
		p.wake(unreachableRetry)
	}
	return result
}

// pause returns the time until the next attempt of a move that was undone. It grows with each failure, because each trial that fails can cost the node
// its network until the deadline.
func pause(j *uplink.Journal) time.Duration {
	return min(time.Until(j.Undone.Add(pauseAfter(j.Failures))), pauseAfter(j.Failures))
}

func pauseAfter(failures int) time.Duration {
	if failures == 0 {
		return 0
	}
	after := firstPause
	for range failures - 1 {
		if after *= pauseFactor; after >= lastPause {
			return lastPause
		}
	}
	return after
}

// undone is the result of a move that was undone.
func undone(j *uplink.Journal) providerbridge.Result {
	return failed(providerbridge.ReasonRolledBack, "%s has its addresses back: %s. Attempt %d begins at %s, or when the specification changes",
		j.Uplink, j.Cause, j.Failures+1, j.Undone.Add(pauseAfter(j.Failures)).Format(time.RFC3339))
}

// begin checks what an interface with addresses needs, and moves it.
func (p *providers) begin(
	ctx context.Context, db *client.Client, provider string, q providerbridge.Request, link netlink.Link, j uplink.Journal,
) providerbridge.Result {
	manager, err := p.managers.Of(link, j.Before)
	switch {
	case err != nil:
		return failure(err)
	case manager != "" && q.NodeInterface != providerbridge.NodeInterfaceAll:
		return failed(providerbridge.ReasonManaged, "interface %s is configured by %s. With nodeInterface All of the ProviderNetwork, its bridge takes over what it has, and Kiln renews it there",
			q.Interface, manager)
	}
	if j.Before.Needed() != "" && !q.NodeInterface.MovesAddresses() {
		return failed(providerbridge.ReasonUnsuitable, "interface %s has %s: set nodeInterface of the ProviderNetwork to Static to let its bridge take over "+
			"addresses and routes, or use an interface without them", q.Interface, j.Before.Needed())
	}
	if refused := strands(link, j.Bridge); refused.State != "" {
		return refused
	}
	old := p.refused[provider]
	waits := !q.Turn && old.attempt == j.Attempt && old.result.Reason == providerbridge.ReasonAwaitingTurn // rules of a whole node can be many: not again before its turn
	if !waits {
		if refused := namedByRules(ctx, q, j); refused.State != "" {
			return refused
		}
	}
	if err := p.makeBridge(ctx, db, provider, link, j.Before); err != nil {
		return failure(err)
	}
	if j.Before.Needed() != "" {
		if refused := p.prepareTrial(ctx, q, link, &j); refused.State != "" {
			return refused
		}
		moving := providerbridge.Result{State: providerbridge.StateMoving, Interface: q.Interface, Attempt: q.Attempt}
		if err := report(ctx, db, provider, moving); err != nil {
			return failure(err)
		}
		j.Phase, j.Deadline = uplink.PhaseTrial, uplink.Deadline(trialTime)
	}
	if err := p.directory.Begin(ctx, j); err != nil {
		return failure(err)
	}
	delete(p.raised, j.Bridge)
	p.moves.begun.Add(1)
	err = p.move(ctx, db, provider, link, j)
	if err == nil && j.Phase == uplink.PhaseTrial {
		err = p.directory.Commit(ctx, j.Bridge)
	}
	switch {
	case ctx.Err() != nil: // the next process, or a guard, undoes it
		return failure(ctx.Err())
	case err != nil:
		return p.undo(ctx, db, j, err)
	}
	p.moves.completed.Add(1)
	p.options.Log.Info("an interface moved to the bridge of a provider network", "bridge", j.Bridge, "interface", j.Uplink, "answered", uplink.Names(j.Targets))
	return p.keep(ctx, db, provider, q)
}

// undo puts everything back after a move that failed.
func (p *providers) undo(ctx context.Context, db *client.Client, j uplink.Journal, cause error) providerbridge.Result {
	p.moves.undone.Add(1)
	p.options.Log.Error(cause, "putting an interface back", "bridge", j.Bridge, "interface", j.Uplink)
	if err := errors.Join(p.directory.PutBack(ctx, j.Bridge, cause.Error()), detachPort(ctx, db, j.Bridge, j.Uplink)); err != nil {
		return failure(err)
	}
	delete(p.raised, j.Bridge)
	if j.Before.Needed() == "" { // nothing was lost
		return failure(cause)
	}
	back, err := p.directory.Read(j.Bridge)
	if err != nil || back == nil {
		return failure(errors.Join(cause, err))
	}
	p.wake(pause(back))
	return undone(back)
}

// interrupted is the result of a step that failed. If a guard has undone the move before, it is what the guard says.
func (p *providers) interrupted(bridge string, cause error) providerbridge.Result {
	if !errors.Is(cause, uplink.ErrReturned) {
		return failure(cause)
	}
	j, err := p.directory.Read(bridge)
	if err != nil || j == nil || j.Before.Needed() == "" {
		return failure(errors.Join(cause, err))
	}
	p.wake(retryDelay) // the port has to go
	return undone(j)
}

// makeBridge makes the bridge without the interface, and waits until ovs-vswitchd and the kernel have it.
func (p *providers) makeBridge(ctx context.Context, db *client.Client, provider string, link netlink.Link, before uplink.State) error {
	bridge := providerbridge.Bridge(provider)
	if err := p.directory.Step.Before("write bridge"); err != nil {
		return err
	}
	if err := errors.Join(p.write(ctx, db, provider, link, false), awaitPort(ctx, db, bridge), awaitLink(ctx, bridge)); err != nil {
		return err
	}
	return p.directory.Prepare(bridge, before)
}

// prepareTrial completes the journal of a move of an interface with addresses, or returns why it must not begin.
func (p *providers) prepareTrial(ctx context.Context, q providerbridge.Request, link netlink.Link, j *uplink.Journal) providerbridge.Result {
	candidates := uplink.Candidates(j.Before, q.Peers, p.apiServer())
	onTop, err := uplink.OnTop(j.Before, q.Peers)
	if err != nil {
		return failure(err)
	}
	candidates = append(candidates, onTop...)
	limited, cancel := context.WithTimeout(ctx, answerTime)
	j.Targets = uplink.Answering(limited, link, candidates)
	cancel()
	near := func(t uplink.Target) bool { return t.Port == 0 }
	switch {
	case !slices.ContainsFunc(candidates, near):
		return failed(providerbridge.ReasonUnreachable, "interface %s has no gateway, and no other host of its networks is known: nothing would show whether the move works", q.Interface)
	case !slices.ContainsFunc(j.Targets, near):
		return failed(providerbridge.ReasonUnreachable, "before the move, none of these answers on interface %s: %s",
			q.Interface, uplink.Names(slices.DeleteFunc(candidates, func(t uplink.Target) bool { return !near(t) })))
	}
	if j.Leases, err = p.prove(ctx, link, *j); err != nil {
		return failed(providerbridge.ReasonUnreachable, "before the move, %v: after it, nothing would renew what interface %s has for a limited time. "+
			"Use static addresses and routes, or let its DHCP client identify itself by the MAC address", err, q.Interface)
	}
	for _, l := range j.Leases {
		j.Before = j.Before.Renewed(l)
	}
	switch {
	case !q.Turn:
		return failed(providerbridge.ReasonAwaitingTurn, "interface %s has %s, and waits until it may move: interfaces with addresses or routes move node by node. "+
			"status.turn of a ProviderNetwork names the node that moves", q.Interface, j.Before.Needed())
	}
	return providerbridge.Result{}
}

// move attaches the interface to the bridge and moves its state, and returns nil once all targets answer by the bridge.
func (p *providers) move(ctx context.Context, db *client.Client, provider string, link netlink.Link, j uplink.Journal) error {
	if j.Phase == uplink.PhaseTrial {
		limited, cancel := context.WithTimeout(ctx, j.Left()-verifyMargin)
		defer cancel()
		ctx = limited
	}
	err := p.directory.While(ctx, j.Bridge, "attach "+j.Uplink, func() error { return p.write(ctx, db, provider, link, true) })
	if err == nil {
		err = p.directory.Step.Before("wait for " + j.Uplink)
	}
	if err == nil {
		err = awaitPort(ctx, db, j.Uplink)
	}
	if err != nil {
		return err
	}
	if _, err := p.directory.Move(ctx, j.Bridge); err != nil {
		return err
	}
	if err := p.shield(ctx, j.Bridge, link); err != nil {
		return err
	}
	if len(j.Targets) == 0 {
		return nil
	}
	bridge, err := netlink.LinkByName(j.Bridge)
	if err != nil {
		return fmt.Errorf("look for interface %s: %w", j.Bridge, err)
	}
	if err := p.directory.Step.Before("verify"); err != nil {
		return err
	}
	answered := uplink.Answering(ctx, bridge, j.Targets)
	if silent := slices.DeleteFunc(slices.Clone(j.Targets), func(t uplink.Target) bool { return slices.Contains(answered, t) }); len(silent) > 0 {
		return fmt.Errorf("after the move, %s did not answer for %s", uplink.Names(silent), trialTime)
	}
	return nil
}

// awaitLink returns once the kernel has the interface of a bridge. The database can have a port number of the time before a reboot.
func awaitLink(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, attachTime)
	defer cancel()
	for {
		if link, err := uplink.Link(name); link != nil || err != nil {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("ovs-vswitchd has not made the interface %s for %s", name, attachTime)
		}
		supervisor.Pause(ctx, 20*time.Millisecond)
	}
}

// write writes the bridge to the database, with the interface if it is attached.
func (p *providers) write(ctx context.Context, db *client.Client, provider string, link netlink.Link, attached bool) error {
	have, err := readBridge(ctx, db, providerbridge.Bridge(provider))
	if err != nil {
		return err
	}
	spec := p.spec(provider, link)
	if attached {
		spec.uplink = link.Attrs().Name
	}
	return spec.ensure(ctx, db, have)
}

// spec is the bridge of a provider network, without an uplink.
func (p *providers) spec(provider string, link netlink.Link) bridgeSpec {
	return bridgeSpec{
		name: providerbridge.Bridge(provider), datapath: p.options.Datapath, hwaddr: link.Attrs().HardwareAddr.String(),
		externalIDs: map[string]string{providerKey: provider}, portIDs: map[string]string{providerKey: provider},
		former: func(port vswitch.Port) bool { return port.ExternalIDs[providerKey] != "" },
	}
}

// shield keeps the node's own stack from answering what the bridge answers, in the userspace datapath.
func (p *providers) shield(ctx context.Context, bridge string, link netlink.Link) error {
	if p.kernel() {
		return nil
	}
	of, err := uplink.ShieldedFor(link)
	p.wake(guardRefresh)
	if err != nil || p.raised[bridge].covers(of) {
		return err
	}
	err = p.directory.While(ctx, bridge, "raise the shield of "+bridge, func() error {
		return uplink.ShieldOf(bridge).Raise(ctx, link.Attrs().Name, of)
	})
	if err != nil {
		return err
	}
	p.raised[bridge] = raised{of, time.Now()}
	return nil
}

// keep keeps a bridge complete after its move: ovs-vswitchd makes its interface again at each start, and the interface can get addresses.
func (p *providers) keep(ctx context.Context, db *client.Client, provider string, q providerbridge.Request) providerbridge.Result {
	bridge := providerbridge.Bridge(provider)
	link, err := uplink.Link(q.Interface)
	if err != nil {
		return failure(err)
	}
	if link == nil {
		return failed(providerbridge.ReasonNoInterface, "the node no longer has the interface %s", q.Interface)
	}
	if err := p.directory.While(ctx, bridge, "write bridge", func() error { return p.write(ctx, db, provider, link, true) }); err != nil {
		return p.interrupted(bridge, err)
	}
	if made, err := uplink.Link(bridge); err != nil || made == nil {
		return failure(errors.Join(fmt.Errorf("ovs-vswitchd has not made the interface %s yet", bridge), err))
	}
	moved, err := p.directory.Move(ctx, bridge)
	if err != nil {
		return p.interrupted(bridge, err)
	}
	if lost, err := p.renew(ctx, bridge); err != nil || lost != nil {
		return p.notRenewed(ctx, db, bridge, lost, err)
	}
	if err := p.shield(ctx, bridge, link); err != nil {
		return p.interrupted(bridge, err)
	}
	if err := errors.Join(p.directory.Step.Before("write ovn-bridge-mappings"), mapBridge(ctx, db, provider, true)); err != nil {
		return failure(err)
	}
	warning, err := p.stranded(bridge, q.Interface)
	if err != nil {
		return failure(err)
	}
	return providerbridge.Result{State: providerbridge.StateReady, Message: warning, MTU: link.Attrs().MTU, Moved: moved}
}
