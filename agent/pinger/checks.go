// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pinger

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kiln-net/kiln/internal/node/nodehealth"
)

// Check is a kind of check.
type Check string

// Kinds of checks, in the order in which a job prints them.
const (
	CheckOpenVSwitch   Check = "open-vswitch"
	CheckOVNController Check = "ovn-controller"
	CheckSouthbound    Check = "southbound"
	CheckPorts         Check = "port-bindings"
	CheckAPIServer     Check = "apiserver"
	CheckInternalDNS   Check = "internal-dns"
	CheckExternalDNS   Check = "external-dns"
	CheckPod           Check = "pod"
	CheckNode          Check = "node"
	CheckExternal      Check = "external"
	CheckPort          Check = "port"
)

// Result is the outcome of one check of one target.
type Result struct {
	Check   Check
	Target  string
	Latency time.Duration
	// Detail is shown for a check that passed.
	Detail string
	// Err is nil if the check passed.
	Err error
}

// target is an address to ping, with the values of its labels and the outcome of the last ping.
type target struct {
	check   Check
	address netip.Addr
	name    string
	labels  []string
	replies []time.Duration
}

func (t *target) key() string { return string(t.check) + " " + strings.Join(t.labels, " ") }

// targets returns the addresses to ping, in the families that this pod has. If the pods are not known, it returns the external addresses.
func (p *Pinger) targets(ctx context.Context, s Settings) ([]*target, error) {
	pods, err := p.Pods(ctx)
	p.nodes = len(pods)
	list := peers(p.Node, pods, s.Peers)
	var targets []*target
	for _, check := range []Check{CheckPod, CheckNode} {
		for _, peer := range list {
			addresses := peer.PodIPs
			if check == CheckNode {
				addresses = peer.HostIPs
			}
			for _, a := range addresses {
				labels := append(p.source(a), peer.Node, text(ofFamilyOrFirst(peer.HostIPs, a)), text(a))
				if check == CheckNode {
					labels = append(p.source(a), peer.Node, text(a))
				}
				targets = append(targets, &target{check: check, address: a, name: fmt.Sprintf("%s on %s", a, peer.Node), labels: labels})
			}
		}
	}
	for _, a := range s.ExternalAddresses {
		targets = append(targets, &target{check: CheckExternal, address: a, name: a.String(), labels: append(p.source(a), a.String())})
	}
	return slices.DeleteFunc(targets, func(t *target) bool { return !ofFamily(p.PodIPs, t.address).IsValid() }), err
}

// source returns the labels of this pod for pings of a.
func (p *Pinger) source(a netip.Addr) []string {
	return []string{p.Node, text(ofFamilyOrFirst(p.HostIPs, a)), text(ofFamily(p.PodIPs, a))}
}

func ofFamilyOrFirst(list []netip.Addr, a netip.Addr) netip.Addr {
	if b := ofFamily(list, a); b.IsValid() || len(list) == 0 {
		return b
	}
	return list[0]
}

// checks returns the checks of every round.
func (p *Pinger) checks(targets []*target) []func(context.Context) []Result {
	checks := []func(context.Context) []Result{p.checkNode}
	for _, t := range targets {
		checks = append(checks, t.checkPing)
	}
	return checks
}

// shared reports whether the check is of a server that all nodes share.
func (c Check) shared() bool {
	return c == CheckAPIServer || c == CheckInternalDNS || c == CheckExternalDNS
}

// sharedChecks returns the checks of servers that all nodes share.
func (p *Pinger) sharedChecks(s Settings) []func(context.Context) []Result {
	checks := []func(context.Context) []Result{p.checkAPIServer}
	for check, names := range map[Check][]string{CheckInternalDNS: s.InternalNames, CheckExternalDNS: s.ExternalNames} {
		for _, name := range names {
			checks = append(checks, func(ctx context.Context) []Result { return p.checkName(ctx, check, name) })
		}
	}
	return checks
}

// checkNode checks the daemons and the ports of the node by the report of its ovs-ovn.
func (p *Pinger) checkNode(ctx context.Context) []Result {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	report, err := p.Report(ctx)
	if err != nil { // without ovs-ovn its daemons do not run
		return []Result{{Check: CheckOpenVSwitch, Target: p.Node, Err: err}, {Check: CheckOVNController, Target: p.Node, Err: err}}
	}
	results := []Result{
		{Check: CheckOpenVSwitch, Target: p.Node, Err: reason(report.OpenVSwitch)},
		{Check: CheckOVNController, Target: p.Node, Err: reason(report.OVNController)},
	}
	if report.OVNController == "" {
		results = append(results, Result{Check: CheckSouthbound, Target: p.Node, Err: reason(report.Southbound)})
	}
	if report.OpenVSwitch != "" {
		return results // its ports are not known
	}
	bindings := Result{Check: CheckPorts, Target: p.Node, Detail: fmt.Sprintf("%d ports", report.Ports)}
	if late := p.late(slices.Concat(report.Unbound, report.Portless), time.Now()); len(late) > 0 {
		bindings.Err = unboundError{late}
	}
	return append(results, bindings)
}

func reason(text string) error {
	if text == "" {
		return nil
	}
	return errors.New(text)
}

// unboundError lists ports by the UUIDs of their rows in table Interface, and pods without a port by their links.
type unboundError struct{ ports []string }

func (e unboundError) Error() string {
	var rows, links, parts []string
	for _, port := range e.ports {
		if nodehealth.IsPodLink(port) {
			links = append(links, port)
		} else {
			rows = append(rows, port)
		}
	}
	if len(rows) > 0 {
		parts = append(parts, fmt.Sprintf("%d ports are not bound by ovn-controller: rows %s of table Interface", len(rows), strings.Join(rows, ", ")))
	}
	if len(links) > 0 {
		parts = append(parts, fmt.Sprintf("%d pods have no port in Open vSwitch: links %s", len(links), strings.Join(links, ", ")))
	}
	return strings.Join(parts, "; ")
}

// late records the ports that are not bound or missing now, and returns those that have not been bound for p.settle.
func (p *Pinger) late(unbound []string, now time.Time) (late []string) {
	since := make(map[string]time.Time, len(unbound))
	for _, port := range unbound {
		since[port] = now
		if before, there := p.unbound[port]; there {
			since[port] = before
		}
		if now.Sub(since[port]) >= p.settle {
			late = append(late, port)
		}
	}
	p.unbound = since
	return late
}

// recordPorts sets the number of ports that are not bound or missing. It is not known without a result.
func (p *Pinger) recordPorts(results []Result) {
	if len(results) == 0 {
		inconsistentPorts.DeleteLabelValues(p.Node)
		return
	}
	var failed unboundError
	errors.As(results[0].Err, &failed)
	inconsistentPorts.WithLabelValues(p.Node).Set(float64(len(failed.ports)))
}

func (p *Pinger) checkAPIServer(ctx context.Context) []Result {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := p.APIServer(ctx)
	return []Result{{Check: CheckAPIServer, Target: "/readyz", Latency: time.Since(began), Err: err}}
}

func (p *Pinger) checkName(ctx context.Context, check Check, name string) []Result {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	addresses, err := p.Resolver.LookupNetIP(ctx, "ip", name)
	r := Result{Check: check, Target: name, Latency: time.Since(began), Err: err}
	if err == nil {
		slices.SortFunc(addresses, netip.Addr.Compare)
		r.Detail = fmt.Sprint(addresses)
	}
	return []Result{r}
}

// checkPing fails if a packet is lost.
func (t *target) checkPing(ctx context.Context) []Result {
	replies, err := requests.ping(ctx, t.address)
	t.replies = replies
	r := Result{Check: t.check, Target: t.name}
	for _, latency := range replies {
		r.Latency += latency / time.Duration(len(replies))
	}
	if lost := requests.count - len(replies); lost > 0 {
		r.Err = fmt.Errorf("%d of %d packets are lost", lost, requests.count)
		if err != nil {
			r.Err = err
		}
	}
	return []Result{r}
}

// recordPings adds the outcomes to the series, and deletes the series of targets of the last round that are no targets anymore.
func (p *Pinger) recordPings(targets []*target) {
	series := make(map[string]target, len(targets))
	for _, t := range targets {
		series[t.key()] = *t
		pingSeries[t.check].record(t.labels, requests.count, t.replies)
	}
	for key, t := range p.series {
		if _, still := series[key]; !still {
			pingSeries[t.check].forget(t.labels)
		}
	}
	p.series = series
}
