// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/kiln-net/kiln/internal/svc"
)

// cached simulates the caches of a Proxy with a fake API server.
type cached struct {
	cache.Cache
	client.Reader
}

func (c cached) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	return c.Reader.Get(ctx, key, o, opts...)
}

func (c cached) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return c.Reader.List(ctx, list, opts...)
}

// A cache may change during a pass. If a Service grows, it can exclude another one that the pass has just found within the bounds.
func TestAServiceThatIsExcludedDuringAPassIsNotServed(t *testing.T) {
	before := svc.Bounds
	t.Cleanup(func() { svc.Bounds = before })
	service := func(name, address string, age time.Duration, externalIPs ...string) *corev1.Service {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, CreationTimestamp: metav1.NewTime(time.Now().Add(-age))}}
		s.Spec.ClusterIPs, s.Spec.ExternalIPs = []string{address}, externalIPs
		s.Spec.Ports = []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}
		return s
	}
	old, young := service("old", "10.96.0.1", time.Hour, "10.96.0.2"), service("young", "10.96.0.2", time.Minute)
	svc.Bounds.Group = svc.Flows(old, nil) + svc.Flows(young, nil)
	server := fake.NewClientBuilder().WithObjects(old, young).WithIndex(&discoveryv1.EndpointSlice{}, indexService, func(client.Object) []string { return nil }).Build()
	p := &Proxy{Cache: cached{Reader: server}, writer: newWriter(nil)}
	of := func(s *corev1.Service) []client.ObjectKey { return []client.ObjectKey{client.ObjectKeyFromObject(s)} }
	pass := func(s *corev1.Service, during func()) {
		t.Helper()
		wanted, err := p.changesOf(t.Context(), of(s))
		if err != nil {
			t.Fatal(err)
		}
		during()
		if wanted, err = p.withAffected(t.Context(), wanted); err != nil {
			t.Fatal(err)
		}
		p.writer.take(wanted)
	}
	pass(old, func() {})
	pass(young, func() { // young takes the address from old, because it is young's ClusterIP
		old.Spec.Ports = append(old.Spec.Ports, corev1.ServicePort{Name: "more", Port: 81, Protocol: corev1.ProtocolTCP})
		if err := server.Update(t.Context(), old); err != nil {
			t.Fatal(err)
		}
	})
	if pools := p.writer.have[of(young)[0]]; len(pools) > 0 {
		t.Errorf("the younger Service has %+v", pools)
	}
	for _, pool := range p.writer.have[of(old)[0]] {
		if len(pool.fronts) != 2 {
			t.Errorf("the older Service has %+v", pool)
		}
	}
}
