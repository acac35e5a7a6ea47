// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lbrule

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// maxInSlice is the maximum number of endpoints in an EndpointSlice.
const maxInSlice = 1000

// writeSlices maintains the EndpointSlices of a rule with endpoints, so that nodes serve them. The garbage collector deletes them with the
// Service. For a rule with a selector, Kubernetes writes EndpointSlices.
func (r *controller) writeSlices(ctx context.Context, service *corev1.Service, s *state) error {
	wanted := map[string]*discoveryv1.EndpointSlice{}
	for _, slice := range slicesOf(service, s) {
		wanted[slice.Name] = slice
	}
	var list discoveryv1.EndpointSliceList
	err := r.Client.List(ctx, &list, client.InNamespace(service.Namespace), client.MatchingFields{indexSlices: service.Name})
	if err != nil {
		return fmt.Errorf("list EndpointSlices: %w", err)
	}
	for i := range list.Items {
		have := &list.Items[i]
		if have.Labels[discoveryv1.LabelManagedBy] != k8s.EventRecorder {
			continue
		}
		want := wanted[have.Name]
		if want == nil || !metav1.IsControlledBy(have, service) {
			if err := r.Client.Delete(ctx, have, client.Preconditions{UID: &have.UID}); client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("delete EndpointSlice %s: %w", have.Name, err)
			}
			continue
		}
		delete(wanted, have.Name)
		base := have.DeepCopy()
		have.Endpoints, have.Ports = want.Endpoints, want.Ports
		if err := k8s.Patch(ctx, r.Client, base, have); err != nil {
			return err
		}
	}
	for _, slice := range wanted {
		if err := r.Client.Create(ctx, slice, k8s.FieldOwner); err != nil {
			return fmt.Errorf("create EndpointSlice %s: %w", slice.Name, err)
		}
	}
	return nil
}

// slicesOf returns the EndpointSlices of a rule with endpoints, by family.
func slicesOf(service *corev1.Service, s *state) []*discoveryv1.EndpointSlice {
	all := slices.SortedFunc(slices.Values(s.in.Endpoints), netip.Addr.Compare) // IPv4 before IPv6
	all = slices.Compact(all)
	border, _ := slices.BinarySearchFunc(all, 0, func(a netip.Addr, _ int) int {
		if a.Is4() {
			return -1
		}
		return 1
	})
	var list []*discoveryv1.EndpointSlice
	add := func(addressType discoveryv1.AddressType, addresses []netip.Addr) {
		n := 0
		for chunk := range slices.Chunk(addresses, maxInSlice) {
			name := fmt.Sprintf("%s-%s-%d", service.Name, strings.ToLower(string(addressType)), n)
			list = append(list, newSlice(service, name, addressType, chunk, s.in.Ports))
			n++
		}
	}
	add(discoveryv1.AddressTypeIPv4, all[:border])
	add(discoveryv1.AddressTypeIPv6, all[border:])
	return list
}

func newSlice(
	service *corev1.Service, name string, addressType discoveryv1.AddressType, addresses []netip.Addr, ports []translate.LBRulePort,
) *discoveryv1.EndpointSlice {
	owner := metav1.NewControllerRef(service, corev1.SchemeGroupVersion.WithKind("Service"))
	owner.BlockOwnerDeletion = nil // it would require the permission to update finalizers of Services
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: service.Namespace, Name: name,
			Labels:          map[string]string{discoveryv1.LabelServiceName: service.Name, discoveryv1.LabelManagedBy: k8s.EventRecorder},
			OwnerReferences: []metav1.OwnerReference{*owner},
		},
		AddressType: addressType,
	}
	for _, a := range addresses {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{a.String()}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
		})
	}
	for _, p := range ports {
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: new(p.Name), Protocol: new(p.Protocol), Port: new(int32(p.Target))})
	}
	return slice
}
