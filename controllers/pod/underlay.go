// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipam"
	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// vlan returns the Vlan of an underlay subnet with the tag that the subnet has; nil for another subnet. The error is a *problem if the Vlan does not exist,
// or has no valid tag.
func (r *Reconciler) vlan(ctx context.Context, s *kubeovnv1.Subnet) (*kubeovnv1.Vlan, error) {
	if s.Spec.Vlan == "" {
		return nil, nil //nolint:nilnil // an overlay subnet has none
	}
	vlan, err := k8s.Find[kubeovnv1.Vlan](ctx, r.Client, client.ObjectKey{Name: s.Spec.Vlan}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("get Vlan %s: %w", s.Spec.Vlan, err)
	}
	if vlan == nil {
		return nil, &problem{message: fmt.Sprintf("Vlan %s of subnet %s does not exist", s.Spec.Vlan, s.Name), subnets: []string{s.Name}}
	}
	tag, valid := k8s.ValidTag(vlan)
	if !valid {
		what := fmt.Sprintf("Vlan %s of subnet %s", s.Spec.Vlan, s.Name)
		checked := apimeta.FindStatusCondition(vlan.Status.Conditions, kubeovnv1.ConditionValidated) != nil
		return nil, &problem{message: k8s.WhyNotValid(what, vlan.Status.Conditions, vlan.Generation), subnets: []string{s.Name}, quiet: !checked}
	}
	applied := *vlan
	applied.Spec.ID, applied.Spec.VlanID = tag, 0
	return &applied, nil
}

// tagOf returns as text the tag that subnets of a Vlan have, or the cause why they have none.
func tagOf(vlan *kubeovnv1.Vlan) string {
	tag, valid := k8s.ValidTag(vlan)
	if !valid {
		return k8s.WhyNotValid("", vlan.Status.Conditions, vlan.Generation)
	}
	return strconv.Itoa(tag)
}

// allocateInUnderlay allocates an address of a physical network for a pod of the default VPC. It leaves out the addresses of nodes and of the API server, which are
// hosts of the same network.
func (r *Reconciler) allocateInUnderlay(ctx context.Context, port string, s *kubeovnv1.Subnet, want ipam.Request) (ipam.Lease, error) {
	reached, err := r.reached(ctx, s)
	if err != nil {
		return ipam.Lease{}, err
	}
	for _, address := range want.Addresses {
		if owner := reached.hosts[address]; owner != "" {
			return ipam.Lease{}, &ipam.TakenError{Address: address, By: owner}
		}
	}
	want.Avoid = func(address netip.Addr) bool { return reached.hosts[address] != "" }
	return r.Allocator.Allocate(port, want)
}

// withoutForeignMACs returns the requests of a pod without those for a MAC address in an underlay subnet: a router, a node or another host of the physical
// network can have it, and gets no frames once a pod uses it. IP objects, which tenants cannot write, reserve such addresses. Subnets without port security
// accept frames from all MAC addresses anyway. The error is a *problem if no request is left.
func (r *Reconciler) withoutForeignMACs(ctx context.Context, wants []ipam.Request) ([]ipam.Request, error) {
	var kept []ipam.Request
	var denied []string
	for _, want := range wants {
		if len(want.MAC) == 0 {
			return wants, nil // all of them have the MAC address of the annotation, or none
		}
		s, err := r.findSubnet(ctx, want.Subnet)
		if err != nil {
			return nil, err
		}
		if s != nil && r.securesSubnet(s) && foreignMAC(s, want.MAC, want.Addresses) {
			denied = append(denied, s.Name)
			continue
		}
		kept = append(kept, want)
	}
	if len(kept) == 0 && len(denied) > 0 {
		return nil, &problem{subnets: denied, message: fmt.Sprintf("annotation %s: hosts of the physical network of subnet %s may have this MAC address: remove the annotation, "+
			"or let an administrator reserve it for the pod by an IP object", keyMAC, strings.Join(denied, ", "))}
	}
	return kept, nil
}

// foreignMAC reports whether hosts of the physical network of a subnet can have a MAC address. No host has one that derives from the pod's IPv4 address.
func foreignMAC(s *kubeovnv1.Subnet, mac net.HardwareAddr, addresses []netip.Addr) bool {
	if s.Spec.Vlan == "" || len(mac) != 6 {
		return false
	}
	address, derived := ipfamily.OfMAC([6]byte(mac))
	return !derived || !slices.Contains(addresses, address)
}

// withRandomMAC returns the request of a pod with a random MAC address if the pod chose an IPv6 address of an underlay subnet, and no IPv4 address: MAC addresses that
// derive from IPv6 addresses have the same first octet, and the others could be chosen by the address.
func withRandomMAC(s *kubeovnv1.Subnet, want ipam.Request) ipam.Request {
	if s.Spec.Vlan == "" || len(want.MAC) > 0 || len(want.Addresses) == 0 || want.SharedBy != "" ||
		slices.ContainsFunc(want.Addresses, netip.Addr.Is4) {
		return want
	}
	want.MAC = make(net.HardwareAddr, 6)
	_, _ = rand.Read(want.MAC) // never fails (crypto/rand)
	want.MAC[0] = 0x0a         // locally administered unicast
	return want
}

// yieldToLocalnet returns a *problem if the port name of a pod without a port is the name of an underlay subnet's port to its physical
// network.
func (r *Reconciler) yieldToLocalnet(ctx context.Context, key types.NamespacedName) error {
	namespace, name := translate.PodOfLocalnet(key.Namespace)
	if key.Name != name || northbound.Get[nb.LogicalSwitchPort](r.Northbound, translate.PodPortRef(namespace, name)) != nil {
		return nil
	}
	s, err := r.findSubnet(ctx, namespace)
	if err != nil {
		return err
	}
	if s == nil || s.Spec.Vlan == "" {
		return nil
	}
	return &problem{message: fmt.Sprintf("port name %s belongs to subnet %s: choose another name for the pod", translate.LocalnetPort(namespace), namespace)}
}

// onVlan enqueues the pods of a Vlan's subnets if their results change, and wakes all waiting pods if any Vlan changes.
func (r *Reconciler) onVlan() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(context.Context, event.CreateEvent, k8s.Queue) { r.pending.wakeAll() },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q k8s.Queue) {
			before, after := e.ObjectOld.(*kubeovnv1.Vlan), e.ObjectNew.(*kubeovnv1.Vlan)
			if tagOf(before) == tagOf(after) {
				return
			}
			r.pending.wakeAll()
			subnets, err := r.Networks.SubnetsOfVlan(ctx, after.Name)
			if err != nil {
				return // the cache is stopping
			}
			for i := range subnets {
				r.enqueuePodsOf(ctx, subnets[i].Name, q)
			}
		},
	}
}
