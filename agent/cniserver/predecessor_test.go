// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cniserver

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/kiln-net/kiln/api/v1"
)

// TestAStaleCacheGivesNoPodThePredecessorsNetwork: the watch may lag behind the kubelet. The cache then has an earlier pod of the same name
// with a complete result, and only the UID in the request shows that it is another pod.
func TestAStaleCacheGivesNoPodThePredecessorsNetwork(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), v1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	subnet := &v1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: v1.SubnetSpec{CIDRBlock: "10.16.0.0/16", Gateway: "10.16.0.1"}}
	subnet.Status.ValidatedSpec = subnet.Spec.DeepCopy()
	pod := func(uid types.UID, annotations map[string]string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: uid, Annotations: annotations}}
	}
	had := v1.PodNetwork{
		Provider: v1.ProviderOVN, UID: "old", Allocated: true, LogicalSwitch: "s", LogicalRouter: v1.DefaultVpc,
		Addresses: []netip.Addr{netip.MustParseAddr("10.16.0.5")}, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 5},
		CIDRs: []netip.Prefix{netip.MustParsePrefix("10.16.0.0/16")}, Gateways: []netip.Addr{netip.MustParseAddr("10.16.0.1")},
	}
	with := func(p *corev1.Pod) client.Client {
		return fake.NewClientBuilder().WithScheme(scheme).WithObjects(p, subnet).Build()
	}
	pods := &Pods{cache: with(pod("old", had.Annotations())), api: with(pod("new", nil)), waiting: map[types.NamespacedName][]chan struct{}{}}
	key := types.NamespacedName{Namespace: "default", Name: "web"}
	if _, network, err := pods.Wait(t.Context(), key, "old", v1.ProviderOVN); err != nil || len(network.Addresses) != 1 {
		t.Fatalf("the predecessor's own network is %v: %v", network, err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	_, network, err := pods.Wait(ended, key, "new", v1.ProviderOVN)
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "is another one (old, not new)") {
		t.Errorf("the new pod gets %v: %v", network.Addresses, err)
	}
}
