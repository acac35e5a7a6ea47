// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// perSlice is the number of endpoints in an EndpointSlice, as Kubernetes makes them.
const perSlice = 100

// serve measures the cost of a change of one endpoint of a large Service, alone and among many Services. The endpoints are not
// pods.
func (b *bench) serve(ctx context.Context) error {
	if !b.options.northd {
		return errPaused
	}
	balancers, err := watchRows(ctx, b.world.socket("nb"), northbound, "Load_Balancer", "name")
	if err != nil {
		return err
	}
	m, err := b.world.mention(ctx, "Load_Balancer", "vips")
	if err != nil {
		return err
	}
	first, err := b.createService(ctx, "probed", 0, b.options.endpoints)
	if err != nil {
		return err
	}
	if err := balancers.awaitCount(ctx, 1); err != nil {
		return err
	}
	if err := b.calm(ctx); err != nil {
		return err
	}
	made := 0
	change := func(int) ([]sign, func() error) {
		made++
		address := fmt.Sprintf("10.250.%d.%d", made/250, 1+made%250)
		return []sign{{m, address + ":8080"}}, func() error {
			first.Endpoints[0].Addresses = []string{address}
			updated, err := b.world.clients.DiscoveryV1().EndpointSlices(namespace).Update(ctx, first, metav1.UpdateOptions{})
			if err != nil {
				return fmt.Errorf("change an endpoint: %w", err)
			}
			first = updated
			return nil
		}
	}
	what := fmt.Sprintf("one endpoint of %d", b.options.endpoints)
	empty, err := b.probed(ctx, "no other Services", what, "PUT endpointslices", b.options.probes, change)
	if err != nil {
		return err
	}
	scenario := fmt.Sprintf("%d Services", b.options.services)
	names := podNames("service", b.options.services)
	err = b.loader.each(ctx, names, func(ctx context.Context, i int, name string) error {
		_, err := b.createService(ctx, name, i+1, 4)
		return err
	})
	if err != nil {
		return err
	}
	if err := balancers.awaitCount(ctx, 1+len(names)); err != nil {
		return err
	}
	if err := b.calm(ctx); err != nil {
		return err
	}
	among, err := b.probed(ctx, scenario, what, "PUT endpointslices", b.options.probes, change)
	if err != nil {
		return err
	}
	b.addAgainst(scenario, among, empty)
	return b.addMemory(ctx, scenario)
}

// calm waits until the system and ovn-northd have nothing left to do.
func (b *bench) calm(ctx context.Context) error {
	if _, err := b.world.settle(ctx); err != nil {
		return err
	}
	return b.world.northdCaughtUp(ctx)
}

// createService creates a Service without a selector and its EndpointSlices. It returns the first slice.
func (b *bench) createService(ctx context.Context, name string, nth, endpoints int) (*discoveryv1.EndpointSlice, error) {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
		Ports: []corev1.ServicePort{{Name: "http", Port: 80}},
	}}
	if _, err := b.world.clients.CoreV1().Services(namespace).Create(ctx, service, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("create Service %s: %w", name, err)
	}
	var first *discoveryv1.EndpointSlice
	for from := 0; from < endpoints; from += perSlice {
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Name: fmt.Sprintf("%s-%d", name, from/perSlice), Labels: map[string]string{discoveryv1.LabelServiceName: name},
			},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
		}
		for i := from; i < min(endpoints, from+perSlice); i++ {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses:  []string{fmt.Sprintf("10.%d.%d.%d", 100+nth%100, nth/100+i/250, 1+i%250)},
				Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
			})
		}
		created, err := b.world.clients.DiscoveryV1().EndpointSlices(namespace).Create(ctx, slice, metav1.CreateOptions{})
		if err != nil {
			return nil, fmt.Errorf("create an EndpointSlice of %s: %w", name, err)
		}
		if first == nil {
			first = created
		}
	}
	return first, nil
}
