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
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// A kubelet writes the addresses of its Node, and nothing limits them. So they are claims: other nodes, pods and OVN use an address only if it
// is in the record on the IP object of the node's port, which kubelets cannot write.

const (
	// ReasonAddressIgnored is the reason of the event on a node with an address that is not used.
	ReasonAddressIgnored = "AddressIgnored"
	// ReasonAddressConflict is the reason of the event on a node with an address that is used, although something else may get it, too.
	ReasonAddressConflict = "AddressConflict"
	// silence is the time after which a node that does not answer loses its addresses to a node that does.
	silence = 5 * time.Minute
)

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
			r.claims.take(address, records[i].Spec.NodeName)
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
	// recorded are the accepted ones in the present record.
	recorded []netip.Addr
	// ignored says why addresses in the node's status are not used, and what to change; conflicts says the same of addresses that are used.
	ignored, conflicts []string
}

// addressesOf decides which addresses of a node are used. A node claims its addresses once: the first InternalIPs of which any is accepted stay its
// addresses until the Node or the IP object of its port is deleted. A changed status has no effect.
func (r *Reconciler) addressesOf(ctx context.Context, node *corev1.Node) (addresses, error) {
	if err := r.restore(ctx); err != nil {
		return addresses{}, err
	}
	current := k8s.InternalIPs(node)
	ip, err := r.record(ctx, node.Name, len(current) > 0)
	if err != nil {
		return addresses{}, err
	}
	out := addresses{claimed: current}
	joined := false
	if ip != nil {
		out.recorded = k8s.AddressesOfNode(ip)
		claimed := claimIn(ip)
		if joined = len(claimed) > 0; joined {
			out.claimed = claimed
		}
	}
	r.claims.claim(node.Name, out.claimed)
	for _, address := range current {
		if !slices.Contains(out.claimed, address) {
			out.ignored = append(out.ignored, fmt.Sprintf("InternalIP %s is ignored, because the node joined with %s: if its address has changed, "+
				"delete the IP object %s", address, ipfamily.Join(out.claimed), translate.NodePort(node.Name)))
		}
	}
	for _, address := range out.claimed {
		if err := r.judge(ctx, node, address, &out); err != nil {
			return addresses{}, err
		}
	}
	if !joined && len(out.own) == 0 {
		out.claimed = nil // the node may correct them
	}
	return out, nil
}

// claimIn returns the addresses that a node claimed first, by its record. Kube-OVN records no claims, only addresses.
func claimIn(ip *kubeovnv1.IP) []netip.Addr {
	if claimed := k8s.ClaimOfNode(ip); len(claimed) > 0 {
		return claimed
	}
	return k8s.AddressesOfNode(ip)
}

// record returns the IP object of a node's port, nil if it does not exist. If the cache has no claim of a node that claims addresses, it may not have it
// yet: the node must not claim other addresses meanwhile.
func (r *Reconciler) record(ctx context.Context, node string, claims bool) (*kubeovnv1.IP, error) {
	key := client.ObjectKey{Name: translate.NodePort(node)}
	ip, err := k8s.Find[kubeovnv1.IP](ctx, r.Client, key, client.UnsafeDisableDeepCopy)
	if err == nil && (ip == nil || claims && len(claimIn(ip)) == 0) {
		ip, err = k8s.Find[kubeovnv1.IP](ctx, r.Live, key)
	}
	if err != nil {
		return nil, fmt.Errorf("get the IP object of the port: %w", err)
	}
	return ip, nil
}

// judge decides about one address that a node claims.
func (r *Reconciler) judge(ctx context.Context, node *corev1.Node, address netip.Addr, out *addresses) error {
	why, err := r.excluded(ctx, address)
	if err != nil {
		return err
	}
	// The address that a node has is not checked against what came later: a working node keeps it.
	if why == "" && !slices.Contains(out.recorded, address) {
		if why, err = r.refuses(ctx, node, address); err != nil {
			return err
		}
	}
	if why == "" {
		if why, err = r.take(ctx, node, address); err != nil {
			return err
		}
	}
	if why != "" {
		out.ignored = append(out.ignored, fmt.Sprintf("InternalIP %s is ignored: %s", address, why))
		return nil
	}
	out.own = append(out.own, address)
	services, err := r.servicesAt(ctx, address)
	if services.IsValid() {
		out.conflicts = append(out.conflicts, fmt.Sprintf("InternalIP %s is in %s, a CIDR of Services that is newer than the node: delete the ServiceCIDR, "+
			"or give the node an address outside", address, services))
	}
	return err
}

// excluded returns why no node may have an address, and what to change; "" if a node may. A network in use excludes the addresses in it, also if a
// node has recorded one: nodes send their packets to the network, and an applied subnet is never invalid because of a host.
func (r *Reconciler) excluded(ctx context.Context, address netip.Addr) (string, error) {
	if !address.IsGlobalUnicast() {
		return "it is not a unicast address of a network: correct --node-ip of the kubelet", nil
	}
	for _, cidr := range r.ServiceCIDRs.Configured {
		if cidr.Contains(address) {
			return inServices(cidr), nil
		}
	}
	subnets, err := r.Networks.AppliedAt(ctx, kubeovnv1.DefaultVpc, address)
	if err != nil {
		return "", err
	}
	for _, subnet := range subnets {
		if !subnet.Spec.PhysicalGateway() {
			return fmt.Sprintf("it is in subnet %s: give the node an address outside", subnet.Name), nil
		}
	}
	return "", nil
}

// refuses returns why a node may not claim an address that it does not have yet, and what to change; "" if it may.
func (r *Reconciler) refuses(ctx context.Context, node *corev1.Node, address netip.Addr) (string, error) {
	services, err := r.servicesAt(ctx, address)
	if err != nil {
		return "", err
	}
	if services.IsValid() {
		return inServices(services), nil
	}
	subnets, err := r.Networks.AppliedAt(ctx, kubeovnv1.DefaultVpc, address)
	if err != nil {
		return "", err
	}
	for _, subnet := range subnets {
		if why := r.takenIn(subnet, address); why != "" {
			return why + ": give the node another address", nil
		}
	}
	servers, err := r.Networks.APIServers(ctx)
	if err != nil {
		return "", err
	}
	if (slices.Contains(servers, address) || r.apiServers.lately(address, r.now())) && !trusted(node) {
		return fmt.Sprintf("it is an address of the API server: if the node runs one, label it with %s", v1alpha1.ControlPlaneLabel), nil
	}
	if _, silent := silentSince(node); silent && r.claims.holderOf(address) == "" {
		return "the node does not answer: start its kubelet, or delete the Node", nil
	}
	return "", nil
}

func inServices(cidr netip.Prefix) string {
	return fmt.Sprintf("it is in %s, a CIDR of Services: give the node an address outside", cidr)
}

// servicesAt returns the CIDR of Services that contains an address; invalid if there is none.
func (r *Reconciler) servicesAt(ctx context.Context, address netip.Addr) (netip.Prefix, error) {
	services, err := r.ServiceCIDRs.List(ctx)
	for _, cidr := range services {
		if cidr.Contains(address) {
			return cidr, err
		}
	}
	return netip.Prefix{}, err
}

// trusted reports whether a node has a label that no kubelet can set, and that nodes with an API server have.
func trusted(node *corev1.Node) bool {
	_, controlPlane := node.Labels[v1alpha1.ControlPlaneLabel]
	_, managed := node.Labels[v1alpha1.ManagedLabel]
	return controlPlane || managed
}

// takenIn returns the reason why a node cannot have an address in an underlay subnet of the default VPC: the address belongs to a pod, a router or the
// gateway, or pods share it. It returns "" for other addresses, because a physical network may contain nodes.
func (r *Reconciler) takenIn(subnet *kubeovnv1.Subnet, address netip.Addr) string {
	if slices.Contains(ipfamily.ValidAddrs(strings.Split(subnet.Spec.Gateway, ",")...), address) {
		return fmt.Sprintf("it is the gateway of subnet %s", subnet.Name)
	}
	if _, shared := lookup.SharedAmong(&subnet.Spec, []netip.Addr{address}); shared {
		return fmt.Sprintf("it is one of the vips of subnet %s", subnet.Name)
	}
	if holder := r.Allocator.Holder(subnet.Name, address); holder != "" {
		return fmt.Sprintf("%s in subnet %s has it", holder, subnet.Name)
	}
	return ""
}

// take gives an address to a node. It returns why the node does not get it, and what to change. An address passes from one node to another in two
// steps, so that a crash between them leaves it with one of them at most: first the holder gives it up, with its rows and its record.
func (r *Reconciler) take(ctx context.Context, node *corev1.Node, address netip.Addr) (string, error) {
	has := func(holder string) string {
		return fmt.Sprintf("node %s has it: give each node its own address, or delete the Node that no longer exists", holder)
	}
	if r.claims.holderOf(address) == node.Name {
		for _, name := range r.claims.waiting(address) {
			other, err := k8s.Find[corev1.Node](ctx, r.Client, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
			if err != nil {
				return "", fmt.Errorf("get node %s: %w", name, err)
			}
			if other != nil && r.ended(node, other) {
				return has(name), nil
			}
		}
	}
	holder := r.claims.take(address, node.Name)
	if holder == "" {
		return "", nil
	}
	other, err := r.find(ctx, holder)
	if err != nil {
		return "", err
	}
	if other == nil || r.ended(other, node) {
		r.requests.Add(holder) // to give it up
	}
	return has(holder), nil
}

// find returns a node, nil if it does not exist. The cache of a new leader may not have it yet.
func (r *Reconciler) find(ctx context.Context, name string) (*corev1.Node, error) {
	node, err := k8s.Find[corev1.Node](ctx, r.Client, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
	if node == nil && err == nil {
		node, err = k8s.Find[corev1.Node](ctx, r.Live, client.ObjectKey{Name: name})
	}
	if err != nil {
		return nil, fmt.Errorf("get node %s: %w", name, err)
	}
	return node, nil
}

// ended reports whether the claims of a holder have ended in favor of a node: it has been silent for a while, and the node is not. The node life cycle
// controller sets the condition Ready to Unknown when the Lease of a kubelet has expired, so that no kubelet can end the claims of another one.
func (r *Reconciler) ended(holder, node *corev1.Node) bool {
	since, silent := silentSince(holder)
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

// report creates an event for addresses of a node that are not used, or that something else may get. It returns true while there are any.
func (r *Reconciler) report(node *corev1.Node, own addresses) bool {
	reason := ReasonAddressIgnored
	if len(own.ignored) == 0 {
		reason = ReasonAddressConflict
	}
	text := strings.Join(slices.Concat(own.ignored, own.conflicts), "; ")
	if r.claims.report(node.Name, text, r.now()) {
		k8s.Warn(r.Recorder, node, reason, text)
	}
	ignoredAddresses.Set([]string{node.Name}, float64(len(own.ignored)))
	return text != ""
}
