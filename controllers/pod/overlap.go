// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipam"
	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/leases"
	"github.com/kiln-net/kiln/internal/lookup"
)

// A node reaches pods of custom VPCs by their addresses, for probes. So the allocation for such a pod avoids addresses of pods of other
// custom VPCs on the same node. The pod can still request such an address: the node sends probes to the older of the two pods. The pod never
// gets an address that is known at that time as one of a node, of the API server's endpoints, or of a pod of the default VPC, even on
// request: every node reaches these, and the pod's node would send packets for them to the pod.

// reasonAmbiguous is the reason of the event on a pod that shares an address with another pod.
const reasonAmbiguous = "AddressAmbiguous"

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

// insist records that a pod will get an address, even if a pod of another VPC on the same node has it.
func (t *vpcPods) insist(address netip.Addr, pod vpcPod) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.add(address, pod)
}

// claim records that a pod will get an address, unless a pod of another VPC on the same node has it: then it returns that pod's port.
func (t *vpcPods) claim(address netip.Addr, pod vpcPod) (conflict string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if conflict = t.conflict(address, pod); conflict == "" {
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

// moved reports whether the addresses of a port are recorded for another node: its virtual machine has migrated.
func (t *vpcPods) moved(port, node string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	addresses := t.byPort[port]
	return len(addresses) > 0 && !slices.ContainsFunc(t.byAddress[addresses[0]], func(other vpcPod) bool { return other.port == port && other.node == node })
}

func (t *vpcPods) drop(port string) {
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

// restoreVpcPods records the pods of custom VPCs whose addresses are already published.
func (r *Reconciler) restoreVpcPods(ctx context.Context) error {
	var pods corev1.PodList
	if err := r.Client.List(ctx, &pods, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		vpc := pod.Annotations[kubeovnv1.AnnotationLogicalRouter.Key()]
		if vpc == "" || vpc == kubeovnv1.DefaultVpc || !kubeovnv1.IsPublished(pod) || !r.needsPort(pod) {
			continue
		}
		if network, err := kubeovnv1.ParsePodNetwork(pod.Annotations); err == nil {
			r.vpcPods.note(network.Addresses, r.vpcPodOf(pod, vpc))
		}
	}
	return nil
}

func (r *Reconciler) vpcPodOf(pod *corev1.Pod, vpc string) vpcPod {
	return vpcPod{port: leases.PortOf(r.portKey(pod)), vpc: vpc, node: pod.Spec.NodeName}
}

// allocateUnambiguous allocates an address that is not ambiguous, or an ambiguous one if there is no other. A pod of a custom VPC gets no address of a
// pod of the default VPC.
//
// Pods of the default VPC check the claims of pods of custom VPCs, and a pod of a custom VPC claims an address before it checks the default
// VPC's subnets: of two concurrent allocations of an address, one skips it.
func (r *Reconciler) allocateUnambiguous(ctx context.Context, pod *corev1.Pod, s *kubeovnv1.Subnet, want ipam.Request) (ipam.Lease, error) {
	port := leases.PortOf(r.portKey(pod))
	switch {
	case lookup.VpcOf(s) != kubeovnv1.DefaultVpc:
	case s.Spec.PhysicalGateway():
		return r.allocateInUnderlay(ctx, port, s, want)
	default:
		return r.allocateInDefault(port, want)
	}
	reached, err := r.reached(ctx, s)
	if err != nil {
		return ipam.Lease{}, err
	}
	lease, err := r.allocateInVpc(want, r.vpcPodOf(pod, lookup.VpcOf(s)), reached)
	if err != nil {
		r.vpcPods.drop(port)
		err = &overlapError{error: err, subnets: reached.subnets}
	}
	return lease, err
}

// allocateInDefault allocates an address for a pod of the default VPC.
func (r *Reconciler) allocateInDefault(port string, want ipam.Request) (ipam.Lease, error) {
	if r.vpcPods.none() {
		return r.Allocator.Allocate(port, want)
	}
	want.Avoid = func(address netip.Addr) bool { return r.vpcPods.at(address) != "" }
	for range overlapTries {
		if lease, err := r.Allocator.Allocate(port, want); !errors.Is(err, ipam.ErrExhausted) {
			return lease, err
		}
	}
	want.Avoid = nil
	return r.Allocator.Allocate(port, want)
}

// allocateInVpc allocates an address for a pod of a custom VPC. The allocator calls Avoid with the subnet's lock held.
func (r *Reconciler) allocateInVpc(want ipam.Request, pod vpcPod, reached *reached) (ipam.Lease, error) {
	taken := func(address netip.Addr) string {
		r.vpcPods.insist(address, pod)
		return reached.holderOf(address)
	}
	want.Avoid = func(address netip.Addr) bool {
		return r.vpcPods.claim(address, pod) != "" || reached.holderOf(address) != ""
	}
	for range overlapTries {
		r.vpcPods.drop(pod.port)
		for _, address := range want.Addresses {
			if by := taken(address); by != "" {
				return ipam.Lease{}, &ipam.TakenError{Address: address, By: by}
			}
		}
		if lease, err := r.Allocator.Allocate(pod.port, want); !errors.Is(err, ipam.ErrExhausted) {
			return lease, err
		}
	}
	want.Avoid = func(address netip.Addr) bool { return taken(address) != "" }
	return r.Allocator.Allocate(pod.port, want)
}

// overlapError is the error of an allocation that also depends on addresses in other subnets, all in the default VPC.
type overlapError struct {
	error
	subnets []string
}

func (e *overlapError) Unwrap() error { return e.error }

// reached are the addresses that every node reaches and that no pod of a custom VPC may have.
type reached struct {
	hosts   map[netip.Addr]string
	subnets []string // of the default VPC
	holder  func(subnet string, address netip.Addr) string
}

// holderOf names the host or pod that has an address; "" without one.
func (r *reached) holderOf(address netip.Addr) string {
	if host := r.hosts[address]; host != "" {
		return host
	}
	for _, subnet := range r.subnets {
		if port := r.holder(subnet, address); port != "" {
			return fmt.Sprintf("%s in subnet %s, which every node reaches", port, subnet)
		}
	}
	return ""
}

// reached returns the addresses of nodes, of the API server and of the default VPC's pods in a subnet of a custom VPC.
func (r *Reconciler) reached(ctx context.Context, s *kubeovnv1.Subnet) (*reached, error) {
	out := &reached{holder: r.Allocator.Holder}
	cidrs, err := ipfamily.ParseCIDRs(s.Spec.CIDRBlock)
	if err != nil || r.Networks == nil {
		return out, nil //nolint:nilerr // the subnet's own condition says so
	}
	if out.hosts, err = r.Networks.HostsIn(ctx, cidrs); err != nil {
		return nil, err
	}
	others, err := r.Networks.Overlapping(ctx, kubeovnv1.DefaultVpc, cidrs)
	for _, other := range others {
		out.subnets = append(out.subnets, other.Name)
	}
	return out, err
}

// staysUnambiguous reports whether a pod may get a lease that is held under its name. It may not if a pod of a custom VPC would get an address that
// every node reaches elsewhere: while no pod had the lease, a pod of the default VPC can have got its address.
func (r *Reconciler) staysUnambiguous(ctx context.Context, pod *corev1.Pod, lease ipam.Lease) (bool, error) {
	s, err := r.findSubnet(ctx, lease.Subnet)
	if err != nil {
		return false, err
	}
	if s == nil {
		return true, nil // attach reports that the subnet does not exist
	}
	if lookup.VpcOf(s) == kubeovnv1.DefaultVpc {
		return true, nil
	}
	reached, err := r.reached(ctx, s)
	if err != nil {
		return false, err
	}
	self := r.vpcPodOf(pod, lookup.VpcOf(s))
	for _, address := range lease.Addresses {
		r.vpcPods.insist(address, self)
		if reached.holderOf(address) != "" {
			r.vpcPods.drop(self.port)
			return false, nil
		}
	}
	return true, nil
}

// retain records addresses that are reserved in a custom VPC while no pod has them, so that pods of the default VPC do not get them unasked: the
// pod for which they are reserved would be refused.
func (r *Reconciler) retain(ctx context.Context, port string, lease ipam.Lease) {
	s, err := r.findSubnet(ctx, lease.Subnet)
	if s == nil || err != nil {
		return // the lease ends with its subnet
	}
	if vpc := lookup.VpcOf(s); vpc != kubeovnv1.DefaultVpc {
		r.vpcPods.note(lease.Addresses, vpcPod{port: port, vpc: vpc})
	}
}

// settle records a pod's addresses, and warns its user of ambiguous ones. They were requested, or the subnet had no others.
func (r *Reconciler) settle(ctx context.Context, pod *corev1.Pod, lease ipam.Lease) {
	s, err := r.findSubnet(ctx, lease.Subnet)
	if s == nil || err != nil {
		return // attach finds the subnet missing as well
	}
	vpc := lookup.VpcOf(s)
	if vpc == kubeovnv1.DefaultVpc && r.vpcPods.none() {
		return
	}
	conflictAt := func(address netip.Addr) string { return r.vpcPods.at(address) }
	if vpc != kubeovnv1.DefaultVpc {
		conflicts := r.vpcPods.note(lease.Addresses, r.vpcPodOf(pod, vpc))
		conflictAt = func(address netip.Addr) string { return conflicts[address] }
	}
	var ambiguous []string
	for _, address := range lease.Addresses {
		if other := conflictAt(address); other != "" {
			ambiguous = append(ambiguous, fmt.Sprintf("%s also belongs to %s", address, other))
		}
	}
	if len(ambiguous) > 0 {
		k8s.Warn(r.Recorder, pod, reasonAmbiguous, strings.Join(ambiguous, "; ")+
			", in another VPC: what nodes send there, probes above all, may reach one or the other; choose other addresses for one of them")
	}
}
