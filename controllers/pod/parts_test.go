// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/internal/ipam"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/mistakes"
)

func key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "shop", Name: name}
}

func newQueue(t *testing.T) k8s.Queue {
	q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[ctrl.Request]())
	t.Cleanup(q.ShutDown)
	return q
}

func expect(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func TestRequestsFromBeforeTheStartAreKept(t *testing.T) {
	var f k8s.RequestSource
	f.AddKey(key("early"))
	q := newQueue(t)
	if err := f.Start(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	f.AddKey(key("late"))
	expect(t, "requests", controllertest.Drain(q), "early", "late")
}

func TestOnPodNetwork(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		want   bool
	}{
		"a pod on a node":             {func(*corev1.Pod) {}, true},
		"a running pod":               {func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }, true},
		"an unknown pod":              {func(p *corev1.Pod) { p.Status.Phase = corev1.PodUnknown }, true},
		"a pod without a node":        {func(p *corev1.Pod) { p.Spec.NodeName = "" }, false},
		"a pod on the host's network": {func(p *corev1.Pod) { p.Spec.HostNetwork = true }, false},
		"a pod that has succeeded":    {func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, false},
		"a pod that has failed":       {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, false},
	} {
		p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n1"}}
		c.change(p)
		if got := onPodNetwork(p); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestExplainSaysWhatToChange(t *testing.T) {
	a := netip.MustParseAddr("10.16.0.9")
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"full": {
			fmt.Errorf("allocate: %w", &ipam.ExhaustedError{}),
			"subnet s1 is full, it has no free IPv4 address: delete pods, enlarge its cidrBlock or shorten its excludeIps",
		},
		"all ports": {
			fmt.Errorf("allocate: %w", &ipam.PortsError{Limit: 2047}),
			"subnet s1 is full: the switch has all 2047 ports that it can have: delete pods, or serve the namespace with another subnet",
		},
		"taken": {
			fmt.Errorf("allocate: %w", &ipam.TakenError{Address: a, By: "web.shop"}),
			"AddressConflict: address 10.16.0.9 is taken by web.shop: ask for another one",
		},
		"no family": {
			fmt.Errorf("allocate: %w", ipam.ErrNoFamily),
			"subnet s1 has no CIDR of the family in annotation ovn.kubernetes.io/ip_family: correct the annotation, or name another subnet",
		},
		"outside": {
			&ipam.OutsideError{Address: a, Subnet: "s1", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.17.0.0/16")}},
			"address 10.16.0.9 is not one that a port of subnet s1 (10.17.0.0/16) can have: ask for one inside",
		},
		"a failure": {errors.New("connection refused"), ""},
	} {
		if got, _ := explain("s1", c.err); got != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
	full, _ := explain("s1", &ipam.PortsError{Limit: 2047})
	mistakes.Sees(t, 28, full)
}
