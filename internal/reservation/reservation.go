// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package reservation holds addresses of subnets for objects that are no ports, as Vips and OvnEips.
package reservation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipam"
	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/selection"
	"github.com/kiln-net/kiln/internal/validation"
)

// Wish is what an object asks for.
type Wish struct {
	// What the object is, with its article, as messages have it: `a Vip`.
	What string
	// Holder is the name under which the allocator knows the object.
	Holder string
	Subnet string
	// Asked are the addresses of its spec, and Told those of its status: IPv4, IPv6, or empty.
	Asked, Told [2]string
	// AskedMAC and ToldMAC are those of its spec and its status.
	AskedMAC, ToldMAC string
	// Lends: pods may have the addresses for their own.
	Lends bool
}

// ErrWaiting is what comes by itself later.
var ErrWaiting = errors.New("waiting")

// Desk gives what objects wish for.
type Desk struct {
	Client    client.Reader
	Allocator *ipam.Allocator
}

// Restore has the allocator hold what an object was told that it has; what it cannot hold is logged, and asked for again later. Call it
// after the leases of ports are restored, pods that are away included, and before anything is allocated.
func (d Desk) Restore(ctx context.Context, w Wish) {
	addresses, err := Addresses(w.Told)
	if err != nil || len(addresses) == 0 {
		return // it was told nothing that can be read
	}
	mac, _ := net.ParseMAC(w.ToldMAC)
	restore := d.Allocator.Restore
	if w.Lends {
		restore = d.Allocator.RestoreLender
	}
	if err := restore(w.Holder, ipam.Lease{Subnet: w.Subnet, Addresses: addresses, MAC: mac}); err != nil {
		log.FromContext(ctx).Error(err, "cannot keep the addresses of "+w.What+" from before the start", "holder", w.Holder)
	}
}

// Hold returns what the object holds, or makes it hold what it asks for. What it was told before, it asks for again. The problem is the
// user's to mend; an ErrWaiting ends by itself.
func (d Desk) Hold(ctx context.Context, w Wish, check func(*kubeovnv1.Subnet) *validation.Problem) (ipam.Lease, *validation.Problem, error) {
	if lease, held := d.Allocator.Lookup(w.Holder); held {
		return lease, nil, nil
	}
	request, problem := w.request()
	if problem != nil {
		return ipam.Lease{}, problem, nil
	}
	if problem, err := d.checkSubnet(ctx, w, request, check); problem != nil || err != nil {
		return ipam.Lease{}, problem, err
	}
	lease, err := d.Allocator.Allocate(w.Holder, request)
	if err == nil {
		return lease, nil, nil
	}
	if problem := w.obstacle(err); problem != nil {
		return ipam.Lease{}, problem, nil
	}
	if errors.Is(err, ipam.ErrNoSubnet) {
		err = fmt.Errorf("%w for subnet %s to be in force", ErrWaiting, w.Subnet)
	}
	return ipam.Lease{}, nil, err
}

// request is what a wish means to the allocator. A family that is left out is not wanted, unless both are.
func (w Wish) request() (ipam.Request, *validation.Problem) {
	request := ipam.Request{Subnet: w.Subnet}
	addresses, err := Addresses(w.Asked)
	if err == nil && len(addresses) == 0 {
		addresses, err = Addresses(w.Told)
	}
	if err != nil {
		return request, Invalid("addresses: %v", err)
	}
	request.Addresses = addresses
	for _, a := range addresses {
		request.Families = append(request.Families, ipfamily.Of(a))
	}
	if text := cmp.Or(w.AskedMAC, w.ToldMAC); text != "" {
		if request.MAC, err = kubeovnv1.ParseMAC(text); err != nil {
			return request, Invalid("macAddress: %v", err)
		}
	}
	return request, nil
}

// Addresses reads those that are not empty.
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

// Texts are addresses as a status has them; those that are not there are what they were.
func Texts(addresses []netip.Addr, before [2]string) [2]string {
	for _, a := range addresses {
		before[ipfamily.Of(a)] = a.String()
	}
	return before
}

// Invalid is a problem of a field.
func Invalid(format string, args ...any) *validation.Problem {
	return &validation.Problem{Reason: validation.ReasonFieldInvalid, Message: fmt.Sprintf(format, args...)}
}

func taken(format string, args ...any) *validation.Problem {
	return &validation.Problem{Reason: validation.ReasonAddressesInUse, Message: fmt.Sprintf(format, args...)}
}

// checkSubnet finds out whether ports of a subnet may have such addresses.
func (d Desk) checkSubnet(
	ctx context.Context, w Wish, request ipam.Request, check func(*kubeovnv1.Subnet) *validation.Problem,
) (*validation.Problem, error) {
	subnet := &kubeovnv1.Subnet{}
	err := d.Client.Get(ctx, client.ObjectKey{Name: w.Subnet}, subnet, client.UnsafeDisableDeepCopy)
	switch {
	case client.IgnoreNotFound(err) != nil:
		return nil, fmt.Errorf("get subnet %s: %w", w.Subnet, err)
	case w.Subnet == kubeovnv1.JoinSubnet:
		return Invalid("subnet %s is for nodes: create %s of another one", w.Subnet, w.What), nil
	case err != nil:
		return &validation.Problem{
			Reason: validation.ReasonSubnetMissing, Message: fmt.Sprintf("subnet %s does not exist: create it, or %s of another one", w.Subnet, w.What),
		}, nil
	case !selection.OnFirstNetwork(subnet):
		return Invalid("subnet %s is of provider %s: create %s of one of provider %s", subnet.Name, subnet.Spec.Provider, w.What, kubeovnv1.ProviderOVN), nil
	case subnet.DeletionTimestamp != nil:
		return Invalid("subnet %s is being deleted: create %s of another one", subnet.Name, w.What), nil
	case !k8s.ViewSubnet(subnet).Validated:
		return nil, fmt.Errorf("%w for subnet %s, whose condition %s says what is wrong with it", ErrWaiting, subnet.Name, kubeovnv1.ConditionValidated)
	}
	for _, shared := range subnet.Spec.Vips {
		if a, err := ipfamily.ParseAddr(shared); err == nil && slices.Contains(request.Addresses, a) {
			return taken("address %s is one of the vips of subnet %s: create %s with another one", a, subnet.Name, w.What), nil
		}
	}
	if check == nil {
		return nil, nil
	}
	return check(subnet), nil
}

// obstacle says in words for the object's user why it cannot have what it asks for; nil when that is not the user's to mend.
func (w Wish) obstacle(err error) *validation.Problem {
	var (
		held    *ipam.TakenError
		outside *ipam.OutsideError
	)
	switch {
	case errors.As(err, &held):
		return taken("%v: create %s with another one, or free it", held, w.What)
	case errors.As(err, &outside):
		return Invalid("%v: create %s with one inside", outside, w.What)
	case errors.Is(err, ipam.ErrExhausted):
		return taken("%v: delete pods, or enlarge the subnet", err)
	case errors.Is(err, ipam.ErrNoFamily):
		return Invalid("%v: create %s without it", err, w.What)
	}
	return nil
}

// MaxNamed is how many users a message names.
const MaxNamed = 5

// Used is the Ready condition of a deleted object that stays for its users.
func Used(users []string) metav1.Condition {
	return k8s.NotReady(validation.ReasonAddressesInUse, "deleted once nobody uses it: "+k8s.Some(users, MaxNamed))
}
