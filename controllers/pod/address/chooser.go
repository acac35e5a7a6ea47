// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package address chooses the addresses of ports: by the requests of their pods, reservations, Vips, IPPools and subnets.
package address

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/allocations"
	"github.com/kiln-net/kiln/internal/address/grants"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/address/ippools"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
)

// Chooser chooses addresses for ports and allocates them. It depends on the requests of pods, and on nothing that a previous pod had.
type Chooser struct {
	Client     client.Client
	Allocator  *ipam.Allocator
	Namespaces *lookup.Namespaces
	Pools      *ippools.Lookup
	Grants     *grants.Rules
	// Networks finds hosts and subnets with the same addresses. If it is nil, allocations do not check for them.
	Networks *lookup.Networks
	// SecurePorts makes ports of subnets without portSecurity drop packets from addresses other than their own.
	SecurePorts bool

	vpcPods
}

// Claim has the identity of a pod and its requests for its port. An invalid request is left out of it.
type Claim struct {
	kubeovnv1.PodRequest
	Port kubeovnv1.Port
	// Node is the pod's.
	Node string
	// Mirror: a kubelet made the pod, and its requests do not count.
	Mirror bool
	// Workload is the kind of workload that creates the pod again by name, a value of IPSpec.PodType; empty if none does.
	Workload string

	invalid error // a *Problem: the first invalid request
}

// ClaimOf returns the claim of a pod for a port.
func ClaimOf(port kubeovnv1.Port, pod *corev1.Pod, workload string) Claim {
	request, err := kubeovnv1.ParsePodRequestOf(pod.Annotations, port.Provider)
	if err != nil {
		err = &Problem{Message: err.Error()}
	}
	return Claim{request, port, pod.Spec.NodeName, kubeovnv1.IsMirror(pod.Annotations), workload, err}
}

// For allocates addresses from the first of a pod's subnets that has some for its port. ip is the IP object of the port, nil if there is none. The error is a
// *Problem if the pod has to wait.
func (c *Chooser) For(ctx context.Context, claim *Claim, ip *kubeovnv1.IP) (ipam.Allocation, allocations.Source, error) {
	if claim.invalid != nil {
		return ipam.Allocation{}, "", claim.invalid
	}
	wants, err := reserved(claim, ip)
	if wants == nil && err == nil {
		wants, err = c.wants(ctx, claim)
	}
	if err != nil {
		return ipam.Allocation{}, "", err
	}
	var obstacles, names []string
	full, early := true, false
	for _, want := range wants {
		names = append(names, want.Subnet)
		allocation, err := c.allocate(ctx, claim.Port, claim.Node, want)
		if err == nil {
			return allocation, allocations.SourceOf(want), nil
		}
		obstacle, ok := explain(want.Subnet, err)
		if !ok {
			return ipam.Allocation{}, "", err
		}
		cause, checked := c.causeOf(ctx, err, want, claim.Vip)
		obstacle, early = obstacle+cause, early || !checked
		if overlap := (*overlapError)(nil); errors.As(err, &overlap) {
			names = append(names, overlap.subnets...)
			if exhausted := (*ipam.ExhaustedError)(nil); len(overlap.subnets) > 0 && errors.As(err, &exhausted) {
				obstacle += fmt.Sprintf(" (a pod of a custom VPC gets no address of a pod in subnet %s, because every node reaches those)",
					strings.Join(overlap.subnets, ", "))
			}
		}
		obstacles = append(obstacles, obstacle)
		full = full && errors.Is(err, ipam.ErrExhausted)
		p := (*Problem)(nil)
		early = early || errors.As(err, &p) && p.Quiet
	}
	return ipam.Allocation{}, "", &Problem{Message: strings.Join(obstacles, "; "), Subnets: names, Full: full, Quiet: early}
}

// reserved returns the allocation request for the addresses that a user has reserved for a port, none without a reservation.
func reserved(claim *Claim, ip *kubeovnv1.IP) ([]ipam.Request, error) {
	switch {
	case !allocations.IsReservation(ip):
		return nil, nil
	case claim.Mirror:
		return nil, ErrMirror
	}
	want, err := allocations.RequestOf(ip)
	if err != nil {
		return nil, &Problem{Message: fmt.Sprintf("IP %s: %v", ip.Name, err)}
	}
	return []ipam.Request{want}, nil
}

// ErrMirror is the problem of a mirror pod with the name of an absent pod: the addresses of that pod stay retained.
var ErrMirror = &Problem{Message: "addresses are retained for another pod of this name, and a static pod does not get them: rename the static pod"}

// Suits reports whether a pod would still get an allocation that was retained for it.
func (c *Chooser) Suits(ctx context.Context, claim *Claim, allocation ipam.Allocation) (bool, error) {
	if claim.invalid != nil {
		return false, claim.invalid
	}
	wants, err := c.wants(ctx, claim)
	for _, want := range wants {
		if want.Subnet == allocation.Subnet && c.Allocator.Fits(claim.Port.Name, want) {
			return true, nil
		}
	}
	return false, err
}

// Reserve allocates addresses for a port without a pod. The error is a *Problem if that has to wait.
func (c *Chooser) Reserve(ctx context.Context, port kubeovnv1.Port, want ipam.Request) (ipam.Allocation, error) {
	allocation, err := c.allocate(ctx, port, "", want)
	if err == nil {
		return allocation, nil
	}
	message, users := explain(want.Subnet, err)
	if !users {
		return allocation, fmt.Errorf("reserve addresses: %w", err)
	}
	return allocation, &Problem{Message: message, Subnets: []string{want.Subnet}}
}

// causeOf returns, as the end of a message, why an object is not applied that a pod needs for its address: tenants cannot read these objects. checked
// is false while a controller has not tried to apply it: the pod may have been created together with it.
func (c *Chooser) causeOf(ctx context.Context, err error, want ipam.Request, vip string) (cause string, checked bool) {
	switch {
	case errors.Is(err, ipam.ErrNoPool):
		return c.whyNoPool(ctx, want.Pools)
	case errors.Is(err, ipam.ErrNoSubnet):
		if s, err := Subnet(ctx, c.Client, want.Subnet); err == nil && s != nil {
			cause, checked = k8s.WhyNotReady(s.Status.Conditions, s.Generation)
		}
	case errors.Is(err, ipam.ErrNotHeld):
		if v, err := k8s.Find[kubeovnv1.Vip](ctx, c.Client, client.ObjectKey{Name: vip}, client.UnsafeDisableDeepCopy); err == nil && v != nil {
			cause, checked = k8s.WhyNotReady(v.Status.Conditions, v.Generation)
		}
	default:
		return "", true
	}
	if cause != "" {
		cause = ": " + cause
	}
	return cause, checked
}

// candidates returns the subnets to try, in order: the requested one, or the subnets of the namespace.
func (c *Chooser) candidates(ctx context.Context, claim *Claim) ([]string, error) {
	namespace := claim.Port.Namespace
	if claim.Subnet != "" {
		return []string{claim.Subnet}, c.mayUseSubnet(ctx, namespace, claim.Subnet)
	}
	ns := &corev1.Namespace{}
	switch err := c.Client.Get(ctx, client.ObjectKey{Name: namespace}, ns, client.UnsafeDisableDeepCopy); {
	case apierrors.IsNotFound(err): // the watch of pods is ahead of the watch of namespaces, which wakes the pod
		return nil, &Problem{Message: "its namespace is not known yet", Quiet: true}
	case err != nil:
		return nil, fmt.Errorf("get namespace: %w", err)
	}
	return c.Namespaces.Subnets(ctx, ns)
}

// allocate allocates an address for a port of a pod on a node. node is empty if the address is reserved for a future pod.
func (c *Chooser) allocate(ctx context.Context, port kubeovnv1.Port, node string, want ipam.Request) (ipam.Allocation, error) {
	s, err := c.Subnet(ctx, port.Provider, want.Subnet)
	if err != nil {
		return ipam.Allocation{}, err
	}
	if s.DeletionTimestamp != nil {
		return ipam.Allocation{}, &Problem{Message: fmt.Sprintf("subnet %s is being deleted: choose another one", want.Subnet)}
	}
	if a, is := lookup.SharedAmong(&s.Spec, want.Addresses); is && want.SharedBy == "" { // the addresses of a Vip are checked when it gets them
		return ipam.Allocation{}, &Problem{Message: fmt.Sprintf(
			"address %s is one of the vips of subnet %s, which pods share: ask for another one, or share it by annotation %s", a, s.Name,
			kubeovnv1.AnnotationPortVips.Key())}
	}
	if node == "" {
		return c.Allocator.Allocate(port.Name, want)
	}
	return c.allocateUnambiguous(ctx, vpcPod{port: port.Name, vpc: lookup.VpcOf(s), node: node}, s, withRandomMAC(s, want))
}

// allocationRequest returns a pod's allocation request to a subnet.
func allocationRequest(subnet string, request kubeovnv1.PodRequest) ipam.Request {
	want := ipam.Request{Subnet: subnet, Addresses: request.Addresses, MAC: request.MAC}
	switch request.Family {
	case corev1.IPv4Protocol:
		want.Families = []ipfamily.Family{ipfamily.IPv4}
	case corev1.IPv6Protocol:
		want.Families = []ipfamily.Family{ipfamily.IPv6}
	}
	return want
}

// Subnet returns a subnet that pods may use on the network of a provider, with its last valid spec. Otherwise the error is a *Problem, which is quiet while
// the first spec of the subnet is not validated yet: the pod may have been created together with it.
func (c *Chooser) Subnet(ctx context.Context, provider, name string) (*kubeovnv1.Subnet, error) {
	p := &Problem{Subnets: []string{name}}
	s, err := Subnet(ctx, c.Client, name)
	switch {
	case err != nil:
		return nil, err
	case name == kubeovnv1.JoinSubnet:
		p.Message = fmt.Sprintf("subnet %s is for nodes: choose another one", name)
	case s == nil:
		p.Message = fmt.Sprintf("subnet %s does not exist: create it, or name another one", name)
	case !lookup.OnNetwork(s, provider):
		p.Message = fmt.Sprintf("subnet %s is of provider %s: choose one of provider %s", name, s.Spec.Provider, provider)
	case k8s.ValidSpec(s) == nil:
		p.Message = k8s.WhyNotValid("subnet "+name, s.Status.Conditions, s.Generation)
		p.Quiet = !k8s.ViewSubnet(s).Checked
	default:
		return s, nil
	}
	return nil, p
}

// Subnet returns a subnet with its applied spec, nil if it does not exist. The caller must not change it.
func Subnet(ctx context.Context, reader client.Reader, name string) (*kubeovnv1.Subnet, error) {
	s, err := k8s.Find[kubeovnv1.Subnet](ctx, reader, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
	switch {
	case err != nil:
		return nil, fmt.Errorf("get subnet %s: %w", name, err)
	case s == nil:
		return nil, nil //nolint:nilnil // as k8s.Find
	}
	return k8s.Applied(s), nil
}

// mayUseSubnet returns a *Problem when a namespace may not use a subnet. If the subnet does not exist, the allocation reports it.
func (c *Chooser) mayUseSubnet(ctx context.Context, namespace, name string) error {
	s, err := Subnet(ctx, c.Client, name)
	if s == nil || err != nil {
		return err
	}
	denied, err := c.Grants.Subnet(ctx, namespace, s)
	if err == nil && denied != "" {
		err = &Problem{Message: denied, Subnets: []string{name}}
	}
	return err
}

// Secures reports whether all ports of a subnet drop packets from addresses other than their own.
func (c *Chooser) Secures(s *kubeovnv1.Subnet) bool {
	return c.SecurePorts && s.Spec.PortSecurity == "" || s.Spec.PortSecurity == kubeovnv1.PortSecurityEnforced
}
