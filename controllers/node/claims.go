// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// A kubelet writes the addresses of its Node, and nothing limits them. So they are claims: other nodes, pods and OVN use an address only if it
// is in the record on the IP object of the node's port, which kubelets cannot write.

const (
	// ReasonAddressIgnored is the reason of the event on a node with an address that is not used.
	ReasonAddressIgnored = "AddressIgnored"
	// claimRetry is the time after which a refused claim is checked again, and the shortest time between two events of a node.
	claimRetry = time.Minute
	// silence is the time after which a node that does not answer loses its addresses to a node that does.
	silence = 5 * time.Minute
)

// claims holds which node has an address. The first claim wins.
type claims struct {
	// restoring serializes restore.
	restoring sync.Mutex
	restored  bool

	mu     sync.Mutex
	holder map[netip.Addr]string
	of     map[string][]netip.Addr
	// waiting are the nodes that claim an address of another node.
	waiting map[netip.Addr][]string
	// reported is the last event of each node with an ignored address.
	reported map[string]report
}

type report struct {
	text string
	at   time.Time
}

// take gives an address to a node. If another node has it, take returns false and that node, unless ended reports that its claim has ended: then it returns the
// former holder, which has to give up its rows.
func (c *claims) take(address netip.Addr, node string, ended func(holder string) bool) (taken bool, holder string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if holder = c.holder[address]; holder == node {
		return true, ""
	}
	if holder != "" {
		if !ended(holder) {
			if !slices.Contains(c.waiting[address], node) {
				c.waiting[address] = append(c.waiting[address], node)
			}
			return false, holder
		}
		c.of[holder] = slices.DeleteFunc(c.of[holder], func(a netip.Addr) bool { return a == address })
	}
	if c.holder == nil {
		c.holder, c.of, c.waiting = map[netip.Addr]string{}, map[string][]netip.Addr{}, map[netip.Addr][]string{}
	}
	c.holder[address] = node
	c.of[node] = append(c.of[node], address)
	c.waiting[address] = slices.DeleteFunc(c.waiting[address], func(waits string) bool { return waits == node })
	return true, holder
}

// keep releases all addresses of a node except these. It returns the nodes that wait for a released address.
func (c *claims) keep(node string, addresses []netip.Addr) (waiting []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := slices.DeleteFunc(c.of[node], func(a netip.Addr) bool {
		released := !slices.Contains(addresses, a)
		if released {
			waiting = append(waiting, c.waiting[a]...)
			delete(c.holder, a)
			delete(c.waiting, a)
		}
		return released
	})
	if len(kept) == 0 {
		delete(c.of, node)
		return waiting
	}
	c.of[node] = kept
	return waiting
}

// report reports whether an event with a text is due: the node's last event has another text, and is claimRetry old.
func (c *claims) report(node, text string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	last, reported := c.reported[node]
	switch {
	case text == "":
		if now.Sub(last.at) >= claimRetry {
			delete(c.reported, node)
		}
		return false
	case reported && (last.text == text || now.Sub(last.at) < claimRetry):
		return false
	}
	if c.reported == nil {
		c.reported = map[string]report{}
	}
	c.reported[node] = report{text, now}
	return true
}

// forget ends the claims of a deleted node. It returns the nodes that wait for one of its addresses.
func (c *claims) forget(node string) (waiting []string) {
	waiting = c.keep(node, nil)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.reported, node)
	return waiting
}

// restore reads the records of all nodes, once. If two of them have one address, the older record has it.
func (r *Reconciler) restore(ctx context.Context) error {
	r.claims.restoring.Lock()
	defer r.claims.restoring.Unlock()
	if r.claims.restored {
		return nil
	}
	var ips kubeovnv1.IPList
	if err := r.Client.List(ctx, &ips, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list IPs: %w", err)
	}
	records := slices.DeleteFunc(ips.Items, func(ip kubeovnv1.IP) bool { return k8s.NodeOf(&ip) == "" })
	slices.SortFunc(records, func(a, b kubeovnv1.IP) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	for i := range records {
		for _, address := range k8s.AddressesOfNode(&records[i]) {
			r.claims.take(address, records[i].Spec.NodeName, func(string) bool { return false })
		}
	}
	r.claims.restored = true
	return nil
}

// addresses are the addresses of a node.
type addresses struct {
	// own are the accepted ones, which other nodes, pods and OVN use.
	own []netip.Addr
	// claimed are those that the node keeps from now on, also if some are not accepted at present.
	claimed []netip.Addr
	// ignored says why addresses in the node's status are not used, and what to change; one sentence for each.
	ignored []string
}

// addressesOf decides which addresses of a node are used. A node claims its addresses once: the first InternalIPs that are accepted stay its
// addresses until the Node or the IP object of its port is deleted. A changed status has no effect.
func (r *Reconciler) addressesOf(ctx context.Context, node *corev1.Node) (addresses, error) {
	if err := r.restore(ctx); err != nil {
		return addresses{}, err
	}
	ip, err := k8s.Find[kubeovnv1.IP](ctx, r.Client, client.ObjectKey{Name: translate.NodePort(node.Name)}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return addresses{}, fmt.Errorf("get the IP object of the port: %w", err)
	}
	current := k8s.InternalIPs(node)
	out := addresses{claimed: current}
	if ip != nil {
		if recorded := k8s.ClaimOfNode(ip); len(recorded) > 0 {
			out.claimed = recorded
		} else if recorded := k8s.AddressesOfNode(ip); len(recorded) > 0 { // of a version that did not record claims
			out.claimed = recorded
		}
	}
	for _, address := range current {
		if !slices.Contains(out.claimed, address) {
			out.ignored = append(out.ignored, fmt.Sprintf("InternalIP %s is ignored, because the node joined with %s: if its address has changed, "+
				"delete the IP object %s", address, ipfamily.Join(out.claimed), translate.NodePort(node.Name)))
		}
	}
	for _, address := range out.claimed {
		why, err := r.refuses(ctx, node, address)
		switch {
		case err != nil:
			return addresses{}, err
		case why == "":
			out.own = append(out.own, address)
		default:
			out.ignored = append(out.ignored, fmt.Sprintf("InternalIP %s is ignored: %s", address, why))
		}
	}
	r.enqueue(r.claims.keep(node.Name, out.own))
	if len(out.own) == 0 {
		out.claimed = nil // the node may correct them
	}
	return out, nil
}

// refuses returns why a node may not have an address, and what to change; "" if it may. The address is the node's from then on.
func (r *Reconciler) refuses(ctx context.Context, node *corev1.Node, address netip.Addr) (string, error) {
	if !address.IsGlobalUnicast() {
		return "it is not a unicast address of a network: correct --node-ip of the kubelet", nil
	}
	services, err := r.ServiceCIDRs.List(ctx)
	if err != nil {
		return "", err
	}
	for _, cidr := range services {
		if cidr.Contains(address) {
			return fmt.Sprintf("it is in %s, a CIDR of Services: give the node an address outside", cidr), nil
		}
	}
	subnets, err := r.Networks.AppliedAt(ctx, kubeovnv1.DefaultVpc, address)
	if err != nil {
		return "", err
	}
	for _, subnet := range subnets {
		if why := r.takenIn(subnet, address); why != "" {
			return why, nil
		}
	}
	taken, holder := r.claims.take(address, node.Name, func(holder string) bool { return r.ended(ctx, holder, node) })
	if !taken {
		return fmt.Sprintf("node %s has it: give each node its own address, or delete the Node that no longer exists", holder), nil
	}
	if holder != "" {
		r.requests.Add(holder)
	}
	return "", nil
}

// takenIn returns why a node may not have an address in a subnet of the default VPC; "" if it may. Nodes may be in a physical network, where
// they do not have the address of a pod, a router or the gateway.
func (r *Reconciler) takenIn(subnet *kubeovnv1.Subnet, address netip.Addr) string {
	const advice = "give the node another address"
	if !subnet.Spec.PhysicalGateway() {
		return fmt.Sprintf("it is in subnet %s: give the node an address outside", subnet.Name)
	}
	if slices.Contains(ipfamily.ValidAddrs(strings.Split(subnet.Spec.Gateway, ",")...), address) {
		return fmt.Sprintf("it is the gateway of subnet %s: %s", subnet.Name, advice)
	}
	if holder := r.Allocator.Holder(subnet.Name, address); holder != "" {
		return fmt.Sprintf("%s in subnet %s has it: %s", holder, subnet.Name, advice)
	}
	return ""
}

// ended reports whether the claims of a holder have ended in favor of a node: the holder does not exist, or it has been silent for a while and the node
// is not. The node life cycle controller sets the condition Ready to Unknown when the Lease of a kubelet has expired, so that no kubelet can
// end the claims of another one.
func (r *Reconciler) ended(ctx context.Context, holder string, node *corev1.Node) bool {
	other, err := k8s.Find[corev1.Node](ctx, r.Client, client.ObjectKey{Name: holder}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return false // the cache is stopping
	}
	if other == nil {
		return true
	}
	since, silent := silentSince(other)
	_, alsoSilent := silentSince(node)
	return silent && !alsoSilent && r.now().Sub(since) >= silence
}

// silentSince returns since when a node does not answer; false if it does.
func silentSince(node *corev1.Node) (time.Time, bool) {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionUnknown {
			return c.LastTransitionTime.Time, true
		}
	}
	return time.Time{}, false
}

// enqueue reconciles nodes whose claims may have changed.
func (r *Reconciler) enqueue(nodes []string) {
	for _, name := range nodes {
		r.requests.Add(name)
	}
}

func (r *Reconciler) now() time.Time {
	if r.Now == nil {
		return time.Now()
	}
	return r.Now()
}

// reportIgnored creates an event for addresses of a node that are not used. It returns true while there are any.
func (r *Reconciler) reportIgnored(node *corev1.Node, ignored []string) bool {
	text := strings.Join(ignored, "; ")
	if r.claims.report(node.Name, text, r.now()) {
		k8s.Warn(r.Recorder, node, ReasonAddressIgnored, text)
	}
	ignoredAddresses.Set([]string{node.Name}, float64(len(ignored)))
	return len(ignored) > 0
}
