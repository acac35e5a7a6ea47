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
	"sigs.k8s.io/controller-runtime/pkg/log"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipam"
	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/selection"
)

// A node reaches pods of custom VPCs by their addresses, for probes. So the allocation for such a pod avoids addresses of pods of other
// VPCs on the same node, and addresses of the default VPC's pods on any node, since every node reaches these. The pod can still request
// such an address. It never gets an address that is known at that time as one of a node or of the API server's endpoints, even on request:
// the pod's node could no longer reach that host.

// reasonAmbiguous is the reason of the event on a pod that shares an address with another pod.
const reasonAmbiguous = "AddressAmbiguous"

// apartTries is how many times allocateApart calls the allocator, which gives up after a while, for an address that no other pod has.
const apartTries = 16

// tenant is a pod of a custom VPC.
type tenant struct{ port, vpc, node string }

// tenants are the pods of custom VPCs by their addresses. No other lock is taken while theirs is held.
type tenants struct {
	mu        sync.Mutex
	byAddress map[netip.Addr][]tenant
	byPort    map[string][]netip.Addr
}

// claim records that a pod will get an address, unless a pod of another VPC on the same node has it: then it returns that pod's port.
func (t *tenants) claim(address netip.Addr, pod tenant) (rival string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if rival = t.rival(address, pod); rival == "" {
		t.add(address, pod)
	}
	return rival
}

// note records the addresses of a pod. It returns, by address, the ports of pods of other VPCs on the same node that have them too.
func (t *tenants) note(addresses []netip.Addr, pod tenant) (rivals map[netip.Addr]string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.remove(pod.port)
	for _, address := range addresses {
		if rival := t.rival(address, pod); rival != "" {
			if rivals == nil {
				rivals = map[netip.Addr]string{}
			}
			rivals[address] = rival
		}
		t.add(address, pod)
	}
	return rivals
}

func (t *tenants) rival(address netip.Addr, pod tenant) string {
	for _, other := range t.byAddress[address] {
		if other.vpc != pod.vpc && other.node == pod.node {
			return other.port
		}
	}
	return ""
}

func (t *tenants) add(address netip.Addr, pod tenant) {
	if t.byAddress == nil {
		t.byAddress, t.byPort = map[netip.Addr][]tenant{}, map[string][]netip.Addr{}
	}
	if slices.Contains(t.byAddress[address], pod) {
		return
	}
	t.byAddress[address] = append(t.byAddress[address], pod)
	t.byPort[pod.port] = append(t.byPort[pod.port], address)
}

// at returns the port of a pod of any custom VPC that has an address, or "".
func (t *tenants) at(address netip.Addr) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if list := t.byAddress[address]; len(list) > 0 {
		return list[0].port
	}
	return ""
}

// none reports whether no pod of a custom VPC is recorded.
func (t *tenants) none() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.byPort) == 0
}

func (t *tenants) drop(port string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.remove(port)
}

func (t *tenants) remove(port string) {
	for _, address := range t.byPort[port] {
		left := slices.DeleteFunc(t.byAddress[address], func(other tenant) bool { return other.port == port })
		if t.byAddress[address] = left; len(left) == 0 {
			delete(t.byAddress, address)
		}
	}
	delete(t.byPort, port)
}

// restoreTenants records the pods of custom VPCs whose addresses are already published.
func (r *Reconciler) restoreTenants(ctx context.Context) error {
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
		if addresses, err := ipfamily.ParseAddrs(pod.Annotations[kubeovnv1.AnnotationIPAddress.Key()]); err == nil {
			r.tenants.note(addresses, r.tenantOf(pod, vpc))
		}
	}
	return nil
}

func (r *Reconciler) tenantOf(pod *corev1.Pod, vpc string) tenant {
	return tenant{port: portOf(r.portKey(pod)), vpc: vpc, node: pod.Spec.NodeName}
}

// allocateApart allocates an address that is not ambiguous, or an ambiguous one if there is no other.
func (r *Reconciler) allocateApart(ctx context.Context, pod *corev1.Pod, s *kubeovnv1.Subnet, want ipam.Request) (ipam.Lease, error) {
	port := portOf(r.portKey(pod))
	hosts, err := r.hosts(ctx, s)
	if err != nil {
		return ipam.Lease{}, err
	}
	for _, address := range want.Addresses {
		if host := hosts[address]; host != "" {
			return ipam.Lease{}, &ipam.TakenError{Address: address, By: host}
		}
	}
	avoid, err := r.avoid(ctx, pod, s, hosts)
	if err != nil {
		return ipam.Lease{}, err
	}
	if avoid == nil {
		return r.Allocator.Allocate(port, want)
	}
	for range apartTries {
		want.Avoid = avoid
		lease, err := r.Allocator.Allocate(port, want)
		if err == nil {
			return lease, nil
		}
		r.tenants.drop(port)
		if !errors.Is(err, ipam.ErrExhausted) {
			return ipam.Lease{}, err
		}
	}
	want.Avoid = func(address netip.Addr) bool { return hosts[address] != "" }
	return r.Allocator.Allocate(port, want)
}

// hosts returns the addresses of nodes and of the API server in a subnet of a custom VPC. For a subnet of the default VPC it returns none.
func (r *Reconciler) hosts(ctx context.Context, s *kubeovnv1.Subnet) (map[netip.Addr]string, error) {
	if selection.VpcOf(s) == kubeovnv1.DefaultVpc || r.Networks == nil {
		return nil, nil
	}
	cidrs, err := ipfamily.ParseCIDRs(s.Spec.CIDRBlock)
	if err != nil {
		return nil, nil //nolint:nilerr // the subnet's own condition says so
	}
	return r.Networks.HostsIn(ctx, cidrs)
}

// avoid returns a function that reports whether an address would be ambiguous or belongs to a host; nil if no address does. The allocator
// calls it with the subnet's lock held. A pod of a custom VPC claims an address before avoid checks the default VPC's subnets, and pods of
// the default VPC check these claims: of two concurrent allocations of an address, one skips it.
func (r *Reconciler) avoid(ctx context.Context, pod *corev1.Pod, s *kubeovnv1.Subnet, hosts map[netip.Addr]string) (func(netip.Addr) bool, error) {
	if selection.VpcOf(s) == kubeovnv1.DefaultVpc {
		if r.tenants.none() {
			return nil, nil
		}
		return func(address netip.Addr) bool { return r.tenants.at(address) != "" }, nil
	}
	others, err := r.sameAddresses(ctx, s)
	if err != nil {
		return nil, err
	}
	self := r.tenantOf(pod, selection.VpcOf(s))
	return func(address netip.Addr) bool {
		return hosts[address] != "" || r.tenants.claim(address, self) != "" || r.holderIn(others, address) != ""
	}, nil
}

// sameAddresses returns the default VPC's subnets that share addresses with a subnet.
func (r *Reconciler) sameAddresses(ctx context.Context, s *kubeovnv1.Subnet) ([]*kubeovnv1.Subnet, error) {
	cidrs, err := ipfamily.ParseCIDRs(s.Spec.CIDRBlock)
	if err != nil || r.Networks == nil {
		return nil, nil //nolint:nilerr // the subnet's own condition says so
	}
	return r.Networks.Overlapping(ctx, kubeovnv1.DefaultVpc, cidrs)
}

// holderIn returns the port that holds an address in one of some subnets, or "".
func (r *Reconciler) holderIn(subnets []*kubeovnv1.Subnet, address netip.Addr) string {
	for _, s := range subnets {
		if port := r.Allocator.Holder(s.Name, address); port != "" {
			return port
		}
	}
	return ""
}

// settle records a pod's addresses, and warns its user of ambiguous ones. They were requested, or the subnet had no others.
func (r *Reconciler) settle(ctx context.Context, pod *corev1.Pod, lease ipam.Lease) {
	s := &kubeovnv1.Subnet{}
	if err := r.Client.Get(ctx, client.ObjectKey{Name: lease.Subnet}, s, client.UnsafeDisableDeepCopy); err != nil {
		return // attach finds the subnet missing as well
	}
	vpc := selection.VpcOf(s)
	if vpc == kubeovnv1.DefaultVpc && r.tenants.none() {
		return
	}
	rival := func(address netip.Addr) string { return r.tenants.at(address) }
	if vpc != kubeovnv1.DefaultVpc {
		rivals := r.tenants.note(lease.Addresses, r.tenantOf(pod, vpc))
		others, err := r.sameAddresses(ctx, s)
		if err != nil {
			log.FromContext(ctx).Error(err, "cannot look for subnets with the same addresses", "subnet", s.Name)
		}
		rival = func(address netip.Addr) string {
			if port := rivals[address]; port != "" {
				return port
			}
			return r.holderIn(others, address)
		}
	}
	var ambiguous []string
	for _, address := range lease.Addresses {
		if other := rival(address); other != "" {
			ambiguous = append(ambiguous, fmt.Sprintf("%s is also that of %s", address, other))
		}
	}
	if len(ambiguous) > 0 {
		k8s.Warn(r.Recorder, pod, reasonAmbiguous, strings.Join(ambiguous, "; ")+
			", in another VPC: what nodes send there, probes above all, may reach one or the other; choose other addresses for one of them")
	}
}
