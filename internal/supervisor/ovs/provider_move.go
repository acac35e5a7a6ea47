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
	if j != nil && j.Uplink != q.Interface {
		if err := p.release(ctx, db, provider, "the provider network has another interface"); err != nil {
			return failure(err)
		}
		j = nil
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
	if j != nil && !j.Done { // a trial of a process that ended, or a restoration that was interrupted
		if err := p.directory.PutBack(ctx, bridge, "the move was interrupted", j.Interruptions < uplink.MaxInterruptions); err != nil {
			return failure(err)
		}
		if j, err = p.directory.Read(bridge); err != nil {
			return failure(err)
		}
	}
	link, refused := p.suitable(q)
	if refused.State != "" {
		return refused
	}
	state, err := uplink.Read(link)
	if err != nil {
		return failure(err)
	}
	attempt := attemptOf(q, link, state)
	if j != nil {
		if err := detachPort(ctx, db, bridge, q.Interface); err != nil {
			return failure(err)
		}
		if !j.Retry && j.Attempt == attempt {
			return failed(providerbridge.ReasonRolledBack, "%s has its addresses back: %s. "+
				"The move is tried again when the provider network or the interface changes", q.Interface, j.Cause)
		}
	}
	if old, found := p.refused[provider]; found && old.attempt == attempt && time.Since(old.at) < unreachableRetry {
		return old.result
	}
	next := uplink.Journal{Bridge: bridge, Uplink: q.Interface, Kernel: p.kernel(), Attempt: attempt, Before: state, Phase: uplink.PhaseMoved}
	if j != nil && j.Attempt == attempt {
		next.Interruptions = j.Interruptions + 1
	}
	result := p.begin(ctx, db, provider, q, link, next)
	delete(p.refused, provider)
	if result.Reason == providerbridge.ReasonUnreachable {
		p.refused[provider] = refusal{attempt: attempt, at: time.Now(), result: result}
	}
	return result
}

// begin checks what an interface with addresses needs, and moves it.
func (p *providers) begin(
	ctx context.Context, db *client.Client, provider string, q providerbridge.Request, link netlink.Link, j uplink.Journal,
) providerbridge.Result {
	manager, err := p.managers.Of(link, j.Before)
	switch {
	case err != nil:
		return failure(err)
	case manager != "" && q.Managed != providerbridge.ManagedMove:
		return failed(providerbridge.ReasonManaged, "interface %s is configured by %s, which does not follow its addresses to the bridge", q.Interface, manager)
	}
	if len(j.Before.Addresses) > 0 {
		if !p.options.moveAddresses {
			return failed(providerbridge.ReasonUnsuitable, "interface %s has the address %s, and this version does not move addresses of nodes: use an interface "+
				"without addresses", q.Interface, j.Before.Addresses[0].Prefix)
		}
		candidates := uplink.Candidates(j.Before, q.Peers, p.apiServer())
		limited, cancel := context.WithTimeout(ctx, answerTime)
		j.Targets = uplink.Answering(limited, link, candidates)
		cancel()
		near := func(t uplink.Target) bool { return t.Port == 0 }
		if slices.ContainsFunc(candidates, near) && !slices.ContainsFunc(j.Targets, near) {
			return failed(providerbridge.ReasonUnreachable, "before the move, none of these answers on interface %s: %s",
				q.Interface, uplink.Names(slices.DeleteFunc(candidates, func(t uplink.Target) bool { return !near(t) })))
		}
		j.Phase, j.Deadline = uplink.PhaseTrial, uplink.Deadline(trialTime)
		moving := providerbridge.Result{State: providerbridge.StateMoving, Interface: q.Interface, Attempt: q.Attempt}
		if err := report(ctx, db, provider, moving); err != nil {
			return failure(err)
		}
	}
	if err := p.directory.Begin(ctx, j); err != nil {
		return failure(err)
	}
	err = p.move(ctx, db, provider, link, j)
	switch {
	case ctx.Err() != nil: // the next process, or a guard, undoes it
		return failure(err)
	case err == nil && j.Phase == uplink.PhaseTrial:
		if err = p.directory.Commit(ctx, j.Bridge); err == nil {
			p.options.Log.Info("an interface moved to the bridge of a provider network", "bridge", j.Bridge, "interface", j.Uplink, "answered", uplink.Names(j.Targets))
		}
	}
	if err != nil {
		p.options.Log.Error(err, "putting an interface back", "bridge", j.Bridge, "interface", j.Uplink)
		retry := j.Phase != uplink.PhaseTrial // without addresses nothing can be lost
		if undo := errors.Join(p.directory.PutBack(ctx, j.Bridge, err.Error(), retry), detachPort(ctx, db, j.Bridge, j.Uplink)); undo != nil {
			return failure(undo)
		}
		delete(p.raised, j.Bridge)
		p.changed() // reports the cause that the journal has
		if retry {
			return failure(err)
		}
		return failed(providerbridge.ReasonRolledBack, "%s has its addresses back: %v. The move is tried again when the provider network or the interface changes", j.Uplink, err)
	}
	return p.keep(ctx, db, provider, q)
}

// move makes the bridge, attaches the interface and moves its state, and returns nil once all targets answer by the bridge.
func (p *providers) move(ctx context.Context, db *client.Client, provider string, link netlink.Link, j uplink.Journal) error {
	if j.Phase == uplink.PhaseTrial {
		limited, cancel := context.WithTimeout(ctx, j.Left()-verifyMargin)
		defer cancel()
		ctx = limited
	}
	for _, attached := range []bool{false, true} { // the bridge has an interface before it takes packets
		p.directory.Step.Before(fmt.Sprintf("write bridge, attached: %t", attached))
		if err := p.write(ctx, db, provider, link, attached); err != nil {
			return err
		}
		name := j.Bridge
		if attached {
			name = j.Uplink
		}
		p.directory.Step.Before("wait for " + name)
		if err := awaitPort(ctx, db, name); err != nil {
			return err
		}
		if !attached {
			if err := uplink.SetUp(j.Bridge); err != nil {
				return err
			}
		}
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
	p.directory.Step.Before("verify")
	answered := uplink.Answering(ctx, bridge, j.Targets)
	if silent := slices.DeleteFunc(slices.Clone(j.Targets), func(t uplink.Target) bool { return slices.Contains(answered, t) }); len(silent) > 0 {
		return fmt.Errorf("after the move, %s did not answer for %s", uplink.Names(silent), trialTime)
	}
	return nil
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
	if p.kernel() || p.raised[bridge] == link.Attrs().Index {
		return nil
	}
	p.directory.Step.Before("raise the shield of " + bridge)
	if err := uplink.ShieldOf(bridge).Raise(ctx, link.Attrs().Name); err != nil {
		return err
	}
	p.raised[bridge] = link.Attrs().Index
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
	if err := p.write(ctx, db, provider, link, true); err != nil {
		return failure(err)
	}
	if made, err := uplink.Link(bridge); err != nil || made == nil {
		return failure(errors.Join(fmt.Errorf("ovs-vswitchd has not made the interface %s yet", bridge), err))
	}
	moved, err := p.directory.Move(ctx, bridge)
	if err != nil {
		return failure(err)
	}
	if err := p.shield(ctx, bridge, link); err != nil {
		return failure(err)
	}
	p.directory.Step.Before("write ovn-bridge-mappings")
	if err := mapBridge(ctx, db, provider, true); err != nil {
		return failure(err)
	}
	return providerbridge.Result{State: providerbridge.StateReady, MTU: link.Attrs().MTU, Moved: moved}
}

// release restores the interface of a bridge and deletes the bridge.
func (p *providers) release(ctx context.Context, db *client.Client, provider, cause string) error {
	bridge := providerbridge.Bridge(provider)
	p.directory.Step.Before("report removal")
	if err := report(ctx, db, provider, providerbridge.Result{State: providerbridge.StateRemoving}); err != nil {
		return err
	}
	j, err := p.directory.Return(ctx, bridge, cause, true)
	if err != nil {
		return err
	}
	p.directory.Step.Before("unmap " + bridge)
	if err := mapBridge(ctx, db, provider, false); err != nil {
		return err
	}
	if j != nil {
		p.directory.Step.Before("detach " + j.Uplink + " in the database")
		if err := detachPort(ctx, db, bridge, j.Uplink); err != nil {
			return err
		}
	}
	if err := p.directory.PutBack(ctx, bridge, cause, true); err != nil {
		return err
	}
	delete(p.raised, bridge)
	delete(p.refused, provider)
	p.directory.Step.Before("delete bridge " + bridge)
	if err := errors.Join(stopSharing(ctx, db, provider), deleteBridge(ctx, db, bridge)); err != nil {
		return err
	}
	return p.directory.Remove(bridge)
}

// beforeSwitchStarts removes interfaces from bridges in the database whose move was not completed, or was before a reboot, before ovs-vswitchd
// takes their packets again. They move again from the state that they have now.
func (p *providers) beforeSwitchStarts(ctx context.Context, db *client.Client) error {
	have, err := ownBridges(ctx, db)
	if err != nil {
		return err
	}
	for bridge := range have {
		j, err := p.directory.Read(bridge)
		if err != nil {
			return err
		}
		if j != nil && j.Phase == uplink.PhaseMoved {
			continue
		}
		if err := detachPort(ctx, db, bridge, ""); err != nil {
			return err
		}
		if j != nil {
			if err := p.directory.PutBack(ctx, bridge, "the move was interrupted", j.Interruptions < uplink.MaxInterruptions); err != nil {
				return err
			}
		}
	}
	return nil
}

// releaseAll restores the interfaces of all bridges of provider networks.
func (p *providers) releaseAll(ctx context.Context, db *client.Client) error {
	have, err := ownBridges(ctx, db)
	if err != nil {
		return err
	}
	journals, err := p.directory.List()
	if err != nil {
		return err
	}
	var errs []error
	for bridge := range merged(have, named(journals)) {
		errs = append(errs, p.release(ctx, db, bridge[len(providerbridge.Bridge("")):], "Kiln is removed from the node"))
	}
	return errors.Join(errs...)
}
