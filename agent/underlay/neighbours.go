// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kiln-net/kiln/api/v1"

	"github.com/kiln-net/kiln/agent/ovs"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/node/neighbour"
)

// A host that has an address answers a probe within a few milliseconds. A probe can be lost, so there are two. A gateway that has not answered
// them gets further ones, like those of the pod itself.
const (
	probes        = 2
	probeWait     = 150 * time.Millisecond
	gatewayProbes = 3
	gatewayWait   = time.Second
)

const (
	// answerCounts is the time for which an answer of a gateway counts for other pods.
	answerCounts = 10 * time.Second
	// silentFor is the time for which a gateway is reported that has not answered. It is longer than the kubelet's pause between attempts to start
	// a pod.
	silentFor = 2 * time.Minute
)

// Neighbours checks before a pod of an underlay subnet starts that no other host has its addresses, and that its gateways answer. Checks share one
// socket for each interface, and the answers of gateways.
type Neighbours struct {
	Bridge  *ovs.Bridge
	Subnets client.Reader
	// Changed is called when Silent may have changed. It does not block.
	Changed func()

	listeners listeners

	mu       sync.Mutex
	answered map[question]time.Time
	asked    map[question]time.Time
	silent   map[silence]time.Time // until when
}

// question is an address in a VLAN behind an interface.
type question struct {
	name    string
	tag     int
	address netip.Addr
}

// silence is a gateway that has not answered pods of this node.
type silence struct {
	provider string
	v1.SilentGateway
}

// Check returns an error that names the host if a host of the physical network has an address of an underlay pod, or that names the gateway
// if the pod's gateway does not answer.
func (n *Neighbours) Check(ctx context.Context, network v1.PodNetwork) error {
	if network.ProviderNetwork == "" {
		return nil
	}
	ready, err := readyResult(ctx, n.Bridge, network.ProviderNetwork)
	if err != nil {
		return err
	}
	if err := n.checkVLAN(ctx, ready.Interface, network); err != nil {
		return err
	}
	if err := checkNode(ready.Interface, network); err != nil {
		return err
	}
	look := Look{
		Interface: ready.Interface, Tag: network.VLAN, MAC: network.MAC, Addresses: network.Addresses, Migrates: network.Machine != "",
	}
	if look.Gateways, err = n.gatewaysOf(ctx, network); err != nil {
		return err
	}
	holder, silent, err := n.Find(ctx, look)
	if err != nil {
		return err
	}
	if holder != nil {
		return fmt.Errorf("AddressConflict: host %s of ProviderNetwork %s has address %s: add it to excludeIps of subnet %s, and create the pod again",
			holder.MAC, network.ProviderNetwork, holder.Address, network.LogicalSwitch)
	}
	n.report(network, look.Gateways, silent)
	if len(silent) > 0 {
		return fmt.Errorf("GatewayNotAnswering: gateway %s of subnet %s does not answer on interface %s, VLAN %d: see if the physical switch passes the VLAN and "+
			"the MAC addresses of pods, or set disableGatewayCheck", ipfamily.Join(silent), network.LogicalSwitch, ready.Interface, network.VLAN)
	}
	return nil
}

// gatewaysOf returns the physical gateways of a pod that must answer, one for each family of its addresses. They are the subnet's: users cannot
// change them, unlike annotations.
func (n *Neighbours) gatewaysOf(ctx context.Context, network v1.PodNetwork) ([]netip.Addr, error) {
	subnet, err := k8s.Find[v1.Subnet](ctx, n.Subnets, client.ObjectKey{Name: network.LogicalSwitch}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("read subnet %s: %w", network.LogicalSwitch, err)
	}
	if subnet == nil {
		return nil, nil
	}
	spec := k8s.ValidSpec(subnet)
	if spec == nil || !spec.ChecksGateway() {
		return nil, nil
	}
	gateways, err := ipfamily.ParseAddrs(spec.Gateway)
	if err != nil {
		return nil, fmt.Errorf("gateway of subnet %s: %w", subnet.Name, err)
	}
	return slices.DeleteFunc(gateways, func(gateway netip.Addr) bool {
		return !slices.ContainsFunc(network.Addresses, func(a netip.Addr) bool { return a.Is4() == gateway.Is4() })
	}), nil
}

// Look is a search for hosts of a physical network.
type Look struct {
	Interface string
	Tag       int
	// Addresses of the pod, which no other host may have, and its MAC address.
	Addresses []netip.Addr
	MAC       net.HardwareAddr
	// Migrates: a virtual machine may have the addresses on another node. No probe has them as its source: the physical switch would send the
	// machine's traffic here.
	Migrates bool
	// Gateways must answer.
	Gateways []netip.Addr
}

// Find returns a host that has one of the addresses, nil if none answers, and the gateways that do not answer. Probes leave the node's interface with
// the tag of the VLAN. They pass no logical port, so port security does not drop them.
func (n *Neighbours) Find(ctx context.Context, look Look) (holder *neighbour.Host, silent []netip.Addr, err error) {
	silent = n.unanswered(look)
	if len(look.Addresses)+len(silent) == 0 {
		return nil, nil, nil
	}
	l, err := n.listeners.open(look.Interface)
	if err != nil {
		return nil, nil, err
	}
	defer n.listeners.close(l)
	answers, stop := l.search(look.Tag, look.MAC, slices.Concat(look.Addresses, silent))
	defer stop()
	for round := range probes + gatewayProbes {
		wait, waitAlways := probeWait, len(look.Addresses) > 0 // for another host with an address
		if round >= probes {
			wait, waitAlways = gatewayWait, false
		}
		if len(silent) == 0 && !waitAlways {
			break
		}
		if err := n.probe(l, look, silent, round); err != nil {
			return nil, nil, err
		}
		for timer := time.After(wait); timer != nil && (waitAlways || len(silent) > 0); {
			select {
			case <-ctx.Done():
				return nil, nil, fmt.Errorf("look for hosts of the physical network: %w", context.Cause(ctx))
			case <-timer:
				timer = nil
			case found := <-answers:
				if slices.Contains(look.Addresses, found.Address) {
					return &found, nil, nil
				}
				n.remember(question{look.Interface, look.Tag, found.Address})
				silent = slices.DeleteFunc(silent, func(a netip.Addr) bool { return a == found.Address })
			}
		}
	}
	return nil, silent, l.failed()
}

// probe sends the probes of a round. The first rounds look for the pod's addresses. Probes for gateways have the pod's MAC address, which the physical
// switch must accept; in later rounds also its address, which no other host has by then.
func (n *Neighbours) probe(l *listener, look Look, gateways []netip.Addr, round int) error {
	from, wait := neighbour.Host{MAC: look.MAC}, probeWait
	if look.Migrates {
		from.MAC = l.mac
	}
	if round >= probes {
		wait = gatewayWait
	}
	for _, address := range look.Addresses {
		if round < probes {
			if err := l.send(neighbour.Host{MAC: l.mac}, look.Tag, address); err != nil {
				return err
			}
		}
	}
	for _, gateway := range gateways {
		if !n.ask(question{look.Interface, look.Tag, gateway}, wait) {
			continue
		}
		for _, address := range look.Addresses {
			if round >= probes && !look.Migrates && address.Is4() == gateway.Is4() {
				from.Address = address
			}
		}
		if err := l.send(from, look.Tag, gateway); err != nil {
			return err
		}
	}
	return nil
}

// unanswered returns the gateways without a recent answer.
func (n *Neighbours) unanswered(look Look) []netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(look.Gateways), func(gateway netip.Addr) bool {
		at, found := n.answered[question{look.Interface, look.Tag, gateway}]
		return found && time.Since(at) < answerCounts
	})
}

// ask reports whether a probe for a gateway is due: checks of many pods share one.
func (n *Neighbours) ask(q question, wait time.Duration) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if time.Since(n.asked[q]) < wait/2 {
		return false
	}
	n.asked = stamp(n.asked, q)
	return true
}

func (n *Neighbours) remember(q question) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.answered = stamp(n.answered, q)
}

// stamp records the time of a question, and forgets old ones.
func stamp(times map[question]time.Time, q question) map[question]time.Time {
	kept := map[question]time.Time{q: time.Now()}
	for other, at := range times {
		if other != q && time.Since(at) < answerCounts {
			kept[other] = at
		}
	}
	return kept
}

// report records which gateways of a subnet have not answered.
func (n *Neighbours) report(network v1.PodNetwork, gateways, silent []netip.Addr) {
	n.mu.Lock()
	changed := false
	for _, gateway := range gateways {
		key := silence{network.ProviderNetwork, v1.SilentGateway{Subnet: network.LogicalSwitch, Address: gateway}}
		_, before := n.silent[key]
		now := slices.Contains(silent, gateway)
		changed = changed || before != now
		switch {
		case !now:
			delete(n.silent, key)
		case n.silent == nil:
			n.silent = map[silence]time.Time{key: time.Now().Add(silentFor)}
		default:
			n.silent[key] = time.Now().Add(silentFor)
		}
	}
	n.mu.Unlock()
	if changed {
		n.Changed()
	}
}

// Silent returns the gateways of a provider network that have not answered, in a fixed order, and the time until the first of them is no longer
// reported; 0 if there are none.
func (n *Neighbours) Silent(provider string) (silent []v1.SilentGateway, again time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for s, until := range n.silent {
		left := time.Until(until)
		switch {
		case left <= 0:
			delete(n.silent, s)
			continue
		case s.provider != provider:
			continue
		case again == 0 || left < again:
			again = left
		}
		silent = append(silent, s.SilentGateway)
	}
	slices.SortFunc(silent, func(a, b v1.SilentGateway) int {
		if c := strings.Compare(a.Subnet, b.Subnet); c != 0 {
			return c
		}
		return a.Address.Compare(b.Address)
	})
	return silent, again
}
