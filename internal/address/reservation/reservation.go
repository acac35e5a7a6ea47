// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package reservation allocates subnet addresses for objects that have no logical port, such as Vip and OvnEip.
package reservation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/allocations"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/validation"
)

// Request is an allocation request of an object.
type Request struct {
	// What names the kind of the object in messages, with an article: `a Vip`.
	What string
	// Holder is the object's name in the allocator.
	Holder string
	Subnet string
	// SpecAddresses are the addresses in the object's spec, StatusAddresses the ones in its status: IPv4, IPv6; each may be empty.
	SpecAddresses, StatusAddresses [2]string
	// SpecMAC and StatusMAC are the MAC addresses in its spec and its status.
	SpecMAC, StatusMAC string
	// Shareable is true if pods may use the addresses as their own.
	Shareable bool
}

// ErrWaiting is wrapped if the object must wait for another object. A watch triggers the next attempt.
var ErrWaiting = errors.New("waiting")

// Reserver allocates addresses for the requests of objects.
type Reserver struct {
	Client    client.Reader
	Allocator *ipam.Allocator
	Networks  *lookup.Networks
}

// Restore reserves the addresses in the object's status. It logs a failure, and a later Hold retries the allocation. Call it
// after all allocations of ports are restored, including allocations of absent pods, and before anything is allocated.
func (d Reserver) Restore(ctx context.Context, w Request) {
	addresses, err := Addresses(w.StatusAddresses)
	if err != nil || len(addresses) == 0 {
		return // the status has no valid addresses
	}
	mac, _ := net.ParseMAC(w.StatusMAC)
	restore := d.Allocator.Restore
	if w.Shareable {
		restore = d.Allocator.RestoreShared
	}
	if err := restore(w.Holder, ipam.Allocation{Subnet: w.Subnet, Addresses: addresses, MAC: mac}); err != nil {
		log.FromContext(ctx).Error(err, "cannot keep the addresses of "+w.What+" from an earlier process", "holder", w.Holder)
	}
}

// Hold returns the object's allocation, or allocates one for its request. Without addresses in the spec it requests the addresses in
// the status. The user has to fix a problem; an ErrWaiting needs no change by the user.
func (d Reserver) Hold(ctx context.Context, w Request, check func(*kubeovnv1.Subnet) *validation.Problem) (ipam.Allocation, *validation.Problem, error) {
	if allocation, held := d.Allocator.Lookup(w.Holder); held {
		return allocation, nil, nil
	}
	request, problem := w.request()
	if problem != nil {
		return ipam.Allocation{}, problem, nil
	}
	if problem, err := d.checkSubnet(ctx, w, &request, check); problem != nil || err != nil {
		return ipam.Allocation{}, problem, err
	}
	allocation, err := d.Allocator.Allocate(w.Holder, request)
	if err == nil {
		allocations.LogGiven(log.FromContext(ctx), w.Holder, allocation, w.source())
		return allocation, nil, nil
	}
	if problem := w.obstacle(err); problem != nil {
		return ipam.Allocation{}, problem, nil
	}
	if errors.Is(err, ipam.ErrNoSubnet) {
		err = fmt.Errorf("%w for subnet %s to be applied", ErrWaiting, w.Subnet)
	}
	return ipam.Allocation{}, nil, err
}

// request returns the allocator's request. It includes only the families of the given addresses, or all if there are none.
func (w Request) request() (ipam.Request, *validation.Problem) {
	request := ipam.Request{Subnet: w.Subnet}
	addresses, err := Addresses(w.SpecAddresses)
	if err == nil && len(addresses) == 0 {
		addresses, err = Addresses(w.StatusAddresses)
	}
	if err != nil {
		return request, validation.Invalid("addresses: %v", err)
	}
	request.Addresses = addresses
	for _, a := range addresses {
		request.Families = append(request.Families, ipfamily.Of(a))
	}
	if text := cmp.Or(w.SpecMAC, w.StatusMAC); text != "" {
		if request.MAC, err = kubeovnv1.ParseMAC(text); err != nil {
			return request, validation.Invalid("macAddress: %v", err)
		}
	}
	return request, nil
}

// source returns the source of a new allocation.
func (w Request) source() allocations.Source {
	switch none := [2]string{}; {
	case w.SpecAddresses != none:
		return allocations.SourceRequest
	case w.StatusAddresses != none:
		return allocations.SourceStatus
	}
	return allocations.SourceSubnet
}

// Addresses parses the addresses that are not empty.
func Addresses(texts [2]string) ([]netip.Addr, error) {
	var addresses []netip.Addr
	for _, text := range texts {
		if text == "" {
			continue
		}
		a, err := ipfamily.ParseAddr(text)
		if err != nil {
			return nil, err
		}
		addresses = append(addresses, a)
	}
	return addresses, nil
}

// Texts returns addresses as text, by family. A family without an address keeps the given text.
func Texts(addresses []netip.Addr, before [2]string) [2]string {
	for _, a := range addresses {
		before[ipfamily.Of(a)] = a.String()
	}
	return before
}

// checkSubnet returns a problem if the subnet cannot provide the requested addresses. Otherwise the request avoids the hosts of the subnet.
func (d Reserver) checkSubnet(
	ctx context.Context, w Request, request *ipam.Request, check func(*kubeovnv1.Subnet) *validation.Problem,
) (*validation.Problem, error) {
	subnet, err := k8s.Find[kubeovnv1.Subnet](ctx, d.Client, client.ObjectKey{Name: w.Subnet}, client.UnsafeDisableDeepCopy)
	switch {
	case err != nil:
		return nil, fmt.Errorf("get subnet %s: %w", w.Subnet, err)
	case w.Subnet == kubeovnv1.JoinSubnet:
		return validation.Invalid("subnet %s is for nodes: create %s of another one", w.Subnet, w.What), nil
	case subnet == nil:
		return validation.Problemf(validation.ReasonSubnetMissing, "subnet %s does not exist: create it, or %s of another one", w.Subnet, w.What), nil
	case !lookup.OnNetwork(k8s.Applied(subnet), kubeovnv1.ProviderOVN):
		return validation.Invalid("subnet %s is of provider %s: create %s of one of provider %s", subnet.Name, subnet.Spec.Provider, w.What, kubeovnv1.ProviderOVN), nil
	case subnet.DeletionTimestamp != nil:
		return validation.Invalid("subnet %s is being deleted: create %s of another one", subnet.Name, w.What), nil
	case k8s.ValidSpec(subnet) == nil:
		return nil, fmt.Errorf("%w: %s", ErrWaiting, k8s.WhyNotValid("subnet "+subnet.Name, subnet.Status.Conditions, subnet.Generation))
	}
	subnet = k8s.Applied(subnet)
	if a, is := lookup.SharedAmong(&subnet.Spec, request.Addresses); is {
		return validation.InUse("address %s is one of the vips of subnet %s: create %s with another one", a, subnet.Name, w.What), nil
	}
	if check != nil {
		if problem := check(subnet); problem != nil {
			return problem, nil
		}
	}
	return d.avoidHosts(ctx, w, request, subnet)
}

// avoidHosts makes a request avoid the addresses of nodes, the API server and EgressAddresses, which can be in the network of an underlay subnet. It returns a
// problem if the request names one of them.
func (d Reserver) avoidHosts(ctx context.Context, w Request, request *ipam.Request, subnet *kubeovnv1.Subnet) (*validation.Problem, error) {
	cidrs, err := ipfamily.ParseCIDRs(subnet.Spec.CIDRBlock)
	if subnet.Spec.Vlan == "" || lookup.VpcOf(subnet) != kubeovnv1.DefaultVpc || err != nil { // a valid spec has no error
		return nil, nil //nolint:nilerr // see above
	}
	hosts, err := d.Networks.ReservedIn(ctx, cidrs)
	if err != nil {
		return nil, err
	}
	for _, address := range request.Addresses {
		if host := hosts[address]; host != "" {
			return w.obstacle(&ipam.TakenError{Address: address, By: host}), nil
		}
	}
	request.Avoid = func(address netip.Addr) bool { return hosts[address] != "" }
	return nil, nil
}

// obstacle returns the problem of a failed allocation for the object's user; nil if the user cannot fix it.
func (w Request) obstacle(err error) *validation.Problem {
	var (
		held    *ipam.TakenError
		outside *ipam.OutsideError
		ports   *ipam.PortsError
	)
	switch {
	case errors.As(err, &held):
		return validation.InUse("%v: create %s with another one, or free it", held, w.What)
	case errors.As(err, &outside):
		return validation.Invalid("%v: create %s with one inside", outside, w.What)
	case errors.As(err, &ports):
		return validation.InUse("%v: delete pods, or create %s of another subnet", err, w.What)
	case errors.Is(err, ipam.ErrExhausted):
		return validation.InUse("%v: delete pods, or enlarge the subnet", err)
	case errors.Is(err, ipam.ErrNoFamily):
		return validation.Invalid("%v: create %s without it", err, w.What)
	}
	return nil
}

// MaxNamed is the maximum number of users that a message names.
const MaxNamed = 5

// Used returns the Ready condition of a deleted object that still has users.
func Used(users []string) metav1.Condition {
	return k8s.NotReady(validation.ReasonAddressesInUse, "deleted when it is no longer used by "+k8s.Some(users, MaxNamed))
}
