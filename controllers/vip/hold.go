// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package vip

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipam"
	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/selection"
	"github.com/kiln-net/kiln/internal/validation"
)

// Restore has the allocator hold what Vips say they have. Call it after the leases of ports are restored, pods that are away included: one
// of a Vip's addresses is a loan. Call it before anything is allocated.
func (r *Reconciler) Restore(ctx context.Context) error {
	var vips kubeovnv1.VipList
	if err := r.Client.List(ctx, &vips, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list Vips: %w", err)
	}
	for i := range vips.Items {
		vip := &vips.Items[i]
		addresses, err := addressesIn(vip.Status.V4IP, vip.Status.V6IP)
		if err != nil || len(addresses) == 0 {
			continue
		}
		mac, _ := net.ParseMAC(vip.Status.MAC)
		lease := ipam.Lease{Subnet: subnetOf(vip), Addresses: addresses, MAC: mac}
		if err := r.Allocator.RestoreLender(translate.VipHolder(vip.Name), lease); err != nil {
			log.FromContext(ctx).Error(err, "cannot keep the addresses of a Vip from before the start", "vip", vip.Name)
		}
	}
	return nil
}

func subnetOf(vip *kubeovnv1.Vip) string { return cmp.Or(vip.Spec.Subnet, kubeovnv1.DefaultSubnet) }

// hold returns what the Vip holds, or makes it hold what it asks for. What it told before, it asks for again.
func (r *Reconciler) hold(ctx context.Context, vip *kubeovnv1.Vip) (ipam.Lease, *validation.Problem, error) {
	holder := translate.VipHolder(vip.Name)
	if lease, held := r.Allocator.Lookup(holder); held {
		return lease, nil, nil
	}
	if vip.DeletionTimestamp != nil {
		return ipam.Lease{}, nil, nil
	}
	request, problem := requestOf(vip)
	if problem != nil {
		return ipam.Lease{}, problem, nil
	}
	if problem, err := r.checkSubnet(ctx, request); problem != nil || err != nil {
		return ipam.Lease{}, problem, err
	}
	lease, err := r.Allocator.Allocate(holder, request)
	if err == nil {
		return lease, nil, nil
	}
	problem = obstacle(err)
	if problem == nil && errors.Is(err, ipam.ErrNoSubnet) {
		err = fmt.Errorf("%w for subnet %s to be in force", errWaiting, request.Subnet)
	} else if problem != nil {
		err = nil
	}
	return ipam.Lease{}, problem, err
}

// requestOf is what a Vip asks for. A family that is left out is not wanted, unless both are.
func requestOf(vip *kubeovnv1.Vip) (ipam.Request, *validation.Problem) {
	request := ipam.Request{Subnet: subnetOf(vip)}
	addresses, err := addressesIn(vip.Spec.V4IP, vip.Spec.V6IP)
	if err == nil && len(addresses) == 0 {
		addresses, err = addressesIn(vip.Status.V4IP, vip.Status.V6IP)
	}
	if err != nil {
		return request, fieldInvalid("v4ip, v6ip: %v", err)
	}
	request.Addresses = addresses
	for _, a := range addresses {
		request.Families = append(request.Families, ipfamily.Of(a))
	}
	if text := cmp.Or(vip.Spec.MACAddress, vip.Status.MAC); text != "" {
		if request.MAC, err = net.ParseMAC(text); err != nil {
			return request, fieldInvalid("macAddress: %v", err)
		}
	}
	return request, nil
}

func addressesIn(list ...string) ([]netip.Addr, error) {
	var addresses []netip.Addr
	for _, text := range list {
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

func fieldInvalid(format string, args ...any) *validation.Problem {
	return &validation.Problem{Reason: validation.ReasonFieldInvalid, Message: fmt.Sprintf(format, args...)}
}

// checkSubnet finds out whether ports of a subnet may have such addresses.
func (r *Reconciler) checkSubnet(ctx context.Context, request ipam.Request) (*validation.Problem, error) {
	subnet := &kubeovnv1.Subnet{}
	err := r.Client.Get(ctx, client.ObjectKey{Name: request.Subnet}, subnet, client.UnsafeDisableDeepCopy)
	switch {
	case client.IgnoreNotFound(err) != nil:
		return nil, fmt.Errorf("get subnet %s: %w", request.Subnet, err)
	case request.Subnet == kubeovnv1.JoinSubnet:
		return fieldInvalid("subnet %s is for nodes: create a Vip of another one", request.Subnet), nil
	case err != nil:
		return &validation.Problem{
			Reason: validation.ReasonSubnetMissing, Message: fmt.Sprintf("subnet %s does not exist: create it, or a Vip of another one", request.Subnet),
		}, nil
	case !selection.OnFirstNetwork(subnet):
		return fieldInvalid("subnet %s is of provider %s: create a Vip of one of provider %s", subnet.Name, subnet.Spec.Provider, kubeovnv1.ProviderOVN), nil
	case subnet.DeletionTimestamp != nil:
		return fieldInvalid("subnet %s is being deleted: create a Vip of another one", subnet.Name), nil
	case !k8s.ViewSubnet(subnet).Validated:
		return nil, fmt.Errorf("%w for subnet %s, whose condition %s says what is wrong with it", errWaiting, subnet.Name, kubeovnv1.ConditionValidated)
	}
	for _, shared := range subnet.Spec.Vips {
		if a, err := ipfamily.ParseAddr(shared); err == nil && slices.Contains(request.Addresses, a) {
			return taken("address %s is one of the vips of subnet %s: create a Vip with another one", a, subnet.Name), nil
		}
	}
	return nil, nil
}

func taken(format string, args ...any) *validation.Problem {
	return &validation.Problem{Reason: validation.ReasonAddressesInUse, Message: fmt.Sprintf(format, args...)}
}

// obstacle says in words for the Vip's user why it cannot have what it asks for; nil when that is not the user's to mend.
func obstacle(err error) *validation.Problem {
	var (
		held    *ipam.TakenError
		outside *ipam.OutsideError
	)
	switch {
	case errors.As(err, &held):
		return taken("%v: create a Vip with another one, or free it", held)
	case errors.As(err, &outside):
		return fieldInvalid("%v: create a Vip with one inside", outside)
	case errors.Is(err, ipam.ErrExhausted):
		return taken("%v: delete pods, or enlarge the subnet", err)
	case errors.Is(err, ipam.ErrNoFamily):
		return fieldInvalid("%v: create a Vip without it", err)
	}
	return nil
}
