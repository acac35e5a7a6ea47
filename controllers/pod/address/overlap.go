// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package address

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/lookup"
)

// A node reaches pods of custom VPCs by their addresses, for probes. So the allocation for such a pod avoids addresses of pods of other
// custom VPCs on the same node. The pod can still request such an address: the node sends probes to the older of the two pods. The pod never
// gets an address that is known at that time as one of a node, of the API server's endpoints, of an EgressAddress, or of a pod of the default
// VPC, even on request: every node reaches these, and the pod's node would send packets for them to the pod.

// overlapTries is how many times allocateUnambiguous calls the allocator, which gives up after a while, for an address that no other pod has.
const overlapTries = 16

// vpcPod is a pod of a custom VPC, or, without a node, one for which addresses are reserved.
type vpcPod struct{ port, vpc, node string }

// vpcPods are the pods of custom VPCs by their addresses. No other lock is taken while theirs is held.
type vpcPods struct {
	mu        sync.Mutex
	byAddress map[netip.Addr][]vpcPod
	byPort    map[string][]netip.Addr
}

// claim records that a pod will get an address. If a pod of another VPC on the same node has it, claim returns that pod's port, and records the address only
// if the pod insists on it.
func (t *vpcPods) claim(address netip.Addr, pod vpcPod, insists bool) (conflict string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if conflict = t.conflict(address, pod); conflict == "" || insists {
		t.add(address, pod)
	}
	return conflict
}

// note records the addresses of a pod. It returns, by address, the ports of pods of other VPCs on the same node that have them too.
func (t *vpcPods) note(addresses []netip.Addr, pod vpcPod) (conflicts map[netip.Addr]string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.remove(pod.port)
	for _, address := range addresses {
		if other := t.conflict(address, pod); other != "" {
			if conflicts == nil {
				conflicts = map[netip.Addr]string{}
			}
			conflicts[address] = other
		}
		t.add(address, pod)
	}
	return conflicts
}

func (t *vpcPods) conflict(address netip.Addr, pod vpcPod) string {
	for _, other := range t.byAddress[address] {
		if other.vpc != pod.vpc && other.node == pod.node {
			return other.port
		}
	}
	return ""
}

func (t *vpcPods) add(address netip.Addr, pod vpcPod) {
	if t.byAddress == nil {
		t.byAddress, t.byPort = map[netip.Addr][]vpcPod{}, map[string][]netip.Addr{}
	}
	if slices.Contains(t.byAddress[address], pod) {
		return
	}
	t.byAddress[address] = append(t.byAddress[address], pod)
	t.byPort[pod.port] = append(t.byPort[pod.port], address)
}

// at returns the port of a pod of any custom VPC that has an address, or "".
func (t *vpcPods) at(address netip.Addr) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if list := t.byAddress[address]; len(list) > 0 {
		return list[0].port
	}
	return ""
}

// none reports whether no pod of a custom VPC is recorded.
func (t *vpcPods) none() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.byPort) == 0
}

// Moved reports whether the addresses of a port are recorded for another node: its virtual machine has migrated.
func (t *vpcPods) Moved(port, node string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	addresses := t.byPort[port]
	return len(addresses) > 0 && !slices.ContainsFunc(t.byAddress[addresses[0]], func(other vpcPod) bool { return other.port == port && other.node == node })
}

// Drop forgets the addresses of a port that no longer exists.
func (t *vpcPods) Drop(port string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.remove(port)
}

func (t *vpcPods) remove(port string) {
	for _, address := range t.byPort[port] {
		left := slices.DeleteFunc(t.byAddress[address], func(other vpcPod) bool { return other.port == port })
		if t.byAddress[address] = left; len(left) == 0 {
			delete(t.byAddress, address)
		}
	}
	delete(t.byPort, port)
}

// Note records that a port of a VPC on a node has addresses. It is for a custom VPC, and for a default VPC does nothing.
func (c *Chooser) Note(port, vpc, node string, addresses []netip.Addr) {
	if vpc != "" && vpc != kubeovnv1.DefaultVpc {
		c.note(addresses, vpcPod{port: port, vpc: vpc, node: node})
	}
}

// allocateUnambiguous allocates an address that is not ambiguous, or an ambiguous one if there is no other. A pod of a custom VPC gets no address of a
// pod of the default VPC.
//
// Pods of the default VPC check the claims of pods of custom VPCs, and a pod of a custom VPC claims an address before it checks the default
// VPC's subnets: of two concurrent allocations of an address, one skips it.
func (c *Chooser) allocateUnambiguous(ctx context.Context, pod vpcPod, s *kubeovnv1.Subnet, want ipam.Request) (ipam.Allocation, error) {
	switch {
	case pod.vpc != kubeovnv1.DefaultVpc:
	case s.Spec.PhysicalGateway():
		return c.allocateInUnderlay(ctx, pod.port, s, want)
	default:
		return c.allocateInDefault(pod.port, want)
	}
	reached, err := c.reached(ctx, s)
	if err != nil {
		return ipam.Allocation{}, err
	}
	allocation, err := c.allocateInVpc(want, pod, reached)
	if err != nil {
		c.Drop(pod.port)
		err = &overlapError{error: err, subnets: reached.subnets}
	}
	return allocation, err
}

// allocateInDefault allocates an address for a pod of the default VPC.
func (c *Chooser) allocateInDefault(port string, want ipam.Request) (ipam.Allocation, error) {
	if c.none() {
		return c.Allocator.Allocate(port, want)
	}
	want.Avoid = func(address netip.Addr) bool { return c.at(address) != "" }
	for range overlapTries {
		if allocation, err := c.Allocator.Allocate(port, want); !errors.Is(err, ipam.ErrExhausted) {
			return allocation, err
		}
	}
	want.Avoid = nil
	return c.Allocator.Allocate(port, want)
}

// allocateInVpc allocates an address for a pod of a custom VPC. The allocator calls Avoid with the subnet's lock held.
func (c *Chooser) allocateInVpc(want ipam.Request, pod vpcPod, reached *reached) (ipam.Allocation, error) {
	taken := func(address netip.Addr) string {
		c.claim(address, pod, true)
		return reached.holderOf(address)
	}
	want.Avoid = func(address netip.Addr) bool {
		return c.claim(address, pod, false) != "" || reached.holderOf(address) != ""
	}
	for range overlapTries {
		c.Drop(pod.port)
		for _, address := range want.Addresses {
			if by := taken(address); by != "" {
				return ipam.Allocation{}, &ipam.TakenError{Address: address, By: by}
			}
		}
		if allocation, err := c.Allocator.Allocate(pod.port, want); !errors.Is(err, ipam.ErrExhausted) {
			return allocation, err
		}
	}
	want.Avoid = func(address netip.Addr) bool { return taken(address) != "" }
	return c.Allocator.Allocate(pod.port, want)
}

// overlapError is the error of an allocation that also depends on addresses in other subnets, all in the default VPC.
type overlapError struct {
	error
	subnets []string
}

func (e *overlapError) Unwrap() error { return e.error }

// reached are the addresses that every node reaches and that no pod of a custom VPC may have.
type reached struct {
	hosts     map[netip.Addr]string
	subnets   []string // of the default VPC
	allocator *ipam.Allocator
}

// holderOf names the host or pod that has an address; "" without one.
func (r *reached) holderOf(address netip.Addr) string {
	if host := r.hosts[address]; host != "" {
		return host
	}
	for _, subnet := range r.subnets {
		if port := r.allocator.Holder(subnet, address); port != "" {
			return fmt.Sprintf("%s in subnet %s, which every node reaches", port, subnet)
		}
	}
	return ""
}

// reached returns the addresses of nodes, of the API server, of EgressAddresses and of the default VPC's pods in a subnet of a custom VPC.
func (c *Chooser) reached(ctx context.Context, s *kubeovnv1.Subnet) (*reached, error) {
	out := &reached{allocator: c.Allocator}
	cidrs, err := ipfamily.ParseCIDRs(s.Spec.CIDRBlock)
	if err != nil || c.Networks == nil {
		return out, nil //nolint:nilerr // the subnet's own condition says so
	}
	if out.hosts, err = c.Networks.ReservedIn(ctx, cidrs); err != nil {
		return nil, err
	}
	others, err := c.Networks.Overlapping(ctx, kubeovnv1.DefaultVpc, cidrs)
	for _, other := range others {
		out.subnets = append(out.subnets, other.Name)
	}
	return out, err
}

// Unambiguous reports whether a pod on a node may get an allocation that was retained for its port. It may not if a pod of a custom VPC would get an address
// that every node reaches elsewhere: while no pod had the allocation, a pod of the default VPC can have got its address.
func (c *Chooser) Unambiguous(ctx context.Context, port, node string, allocation ipam.Allocation) (bool, error) {
	s, err := Subnet(ctx, c.Client, allocation.Subnet)
	if s == nil || err != nil || lookup.VpcOf(s) == kubeovnv1.DefaultVpc {
		return err == nil, err // the caller reports a subnet that does not exist
	}
	reached, err := c.reached(ctx, s)
	if err != nil {
		return false, err
	}
	for _, address := range allocation.Addresses {
		c.claim(address, vpcPod{port: port, vpc: lookup.VpcOf(s), node: node}, true)
		if reached.holderOf(address) != "" {
			c.Drop(port)
			return false, nil
		}
	}
	return true, nil
}

// Settle records the addresses of a port on a node. node is empty while no pod has the port: then pods of the default VPC do not get the addresses
// without a request for them, because the pod for which they are retained would be refused. Settle returns which addresses are ambiguous, as a message for the pod's
// user, or "": they were requested, or the subnet had no others.
func (c *Chooser) Settle(ctx context.Context, port, node string, allocation ipam.Allocation) string {
	s, err := Subnet(ctx, c.Client, allocation.Subnet)
	if s == nil || err != nil {
		return "" // the allocation ends with its subnet
	}
	vpc := lookup.VpcOf(s)
	if vpc == kubeovnv1.DefaultVpc && (node == "" || c.none()) {
		return ""
	}
	var conflicts map[netip.Addr]string
	if vpc != kubeovnv1.DefaultVpc {
		conflicts = c.note(allocation.Addresses, vpcPod{port: port, vpc: vpc, node: node})
	}
	var ambiguous []string
	for _, address := range allocation.Addresses {
		other := conflicts[address]
		if vpc == kubeovnv1.DefaultVpc {
			other = c.at(address)
		}
		if other != "" {
			ambiguous = append(ambiguous, fmt.Sprintf("%s also belongs to %s", address, other))
		}
	}
	return strings.Join(ambiguous, "; ")
}
