// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/agent/cniserver"
	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/eventually"
)

// watchPods watches the pods of the API server until the test ends.
func watchPods(t *testing.T, n *node) *cniserver.Pods {
	t.Helper()
	watch, err := cache.New(config, cache.Options{Scheme: n.api.Scheme()})
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	go func() { _ = watch.Start(ctx) }()
	pods, err := cniserver.NewPods(ctx, watch, n.api)
	must(t, err)
	n.eventually("the pods are known", pods.Synced)
	return pods
}

// The kubelet stops a pod only after its ADD has returned, so an ADD that keeps waiting delays the deletion by up to 100 s.
func TestWaitEndsWhenThePodIsBeingDeleted(t *testing.T) {
	n := newNode(t)
	pods := watchPods(t, n)
	pod := n.createPod("waiting")
	n.eventually("the pod is known", func() bool {
		known, err := pods.Exists(t.Context(), client.ObjectKeyFromObject(pod), pod.UID)
		return known && err == nil
	})
	ended := make(chan error, 1)
	go func() {
		_, _, err := pods.Wait(t.Context(), client.ObjectKeyFromObject(pod), pod.UID, v1.ProviderOVN)
		ended <- err
	}()
	select {
	case err := <-ended:
		t.Fatalf("Wait ended before the pod was deleted: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	must(t, n.api.Delete(t.Context(), pod, client.GracePeriodSeconds(30)))
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "is being deleted") {
			t.Errorf("Wait returned %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("Wait does not return for a pod that is being deleted")
	}
}

// Users can write a pod's annotations, so a node uses the network in them only if it agrees with the subnet. Wait blocks until the watch
// has received the subnet.
func TestWaitTakesWhatAgreesWithTheSubnetOnly(t *testing.T) {
	n := newNode(t)
	pods := watchPods(t, n)
	subnet := subnetOf("shop", "10.20.0.0/24,fd00:20::/64")
	subnet.Spec.Gateway, subnet.Spec.Vpc = "10.20.0.1,fd00:20::1", "blue"
	n.create(subnet)
	n.create(subnetOf("join", "100.64.0.0/16"))
	unjudged := subnetOf("unjudged", "10.0.0.0/8")
	must(t, n.api.Create(t.Context(), unjudged))
	addresses := func(all ...string) (out []netip.Addr) {
		for _, a := range all {
			out = append(out, netip.MustParseAddr(a))
		}
		return out
	}
	fit := v1.PodNetwork{
		Allocated: true, Routed: true, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, LogicalSwitch: "shop", LogicalRouter: "blue",
		Addresses: addresses("10.20.0.9", "fd00:20::9"),
	}
	wait := func(pod *corev1.Pod) error {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, _, err := pods.Wait(ctx, client.ObjectKeyFromObject(pod), pod.UID, v1.ProviderOVN)
		return err
	}
	known := func(name string) *corev1.Pod {
		pod := n.createPod(name)
		n.eventually("the pod is known", func() bool {
			there, err := pods.Exists(t.Context(), client.ObjectKeyFromObject(pod), pod.UID)
			return there && err == nil
		})
		return pod
	}
	honest := known("honest")
	network := fit
	network.UID = honest.UID
	n.writeNetwork(honest, network)
	n.eventually("the network that agrees is taken", func() bool { return wait(honest) == nil })
	for name, c := range map[string]struct {
		change func(*v1.PodNetwork)
		want   string
	}{
		"another-vpc": {func(p *v1.PodNetwork) { p.LogicalRouter = "x" }, `is of VPC blue, not of "x"`},
		"api-server":  {func(p *v1.PodNetwork) { p.Addresses = addresses("172.29.0.10") }, "has no address 172.29.0.10"},
		"many":        {func(p *v1.PodNetwork) { p.Addresses = addresses("10.20.0.9", "10.20.0.10") }, "gives a pod one IPv4 address"},
		"gateway":     {func(p *v1.PodNetwork) { p.Addresses = addresses("fd00:20::1") }, "has its gateway at fd00:20::1"},
		"no-subnet":   {func(p *v1.PodNetwork) { p.LogicalSwitch = "" }, `name subnet "", which is not known`},
		"missing":     {func(p *v1.PodNetwork) { p.LogicalSwitch = "missing" }, `name subnet "missing", which is not known`},
		"join": {func(p *v1.PodNetwork) {
			p.LogicalSwitch, p.LogicalRouter, p.Addresses = "join", v1.DefaultVpc, addresses("100.64.0.9")
		}, "name subnet join, which is for nodes"},
		"unjudged": {func(p *v1.PodNetwork) {
			p.LogicalSwitch, p.LogicalRouter, p.Addresses = "unjudged", v1.DefaultVpc, addresses("10.9.9.9")
		}, "subnet unjudged, which is not valid yet"},
	} {
		pod := known(name)
		network := fit
		network.UID = pod.UID
		c.change(&network)
		n.writeNetwork(pod, network)
		n.eventually("Wait says that "+c.want, func() bool {
			err := wait(pod)
			if err == nil {
				t.Fatalf("%s: the network was taken", name)
			}
			return strings.Contains(err.Error(), c.want)
		})
	}

	late := known("late")
	network = fit
	network.UID, network.LogicalSwitch = late.UID, "later"
	n.writeNetwork(late, network)
	ended := make(chan error, 1)
	go func() {
		_, _, err := pods.Wait(t.Context(), client.ObjectKeyFromObject(late), late.UID, v1.ProviderOVN)
		ended <- err
	}()
	select {
	case err := <-ended:
		t.Fatalf("Wait ended before its subnet was there: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	later := subnetOf("later", "10.20.0.0/24,fd00:20::/64")
	later.Spec.Vpc = "blue"
	n.create(later)
	select {
	case err := <-ended:
		must(t, err)
	case <-time.After(patience):
		t.Error("Wait does not see the subnet that has come")
	}
}

// An ADD also waits for the flows of its port.
func TestADDEndsWhenThePodIsDeletedBeforeItsFlows(t *testing.T) {
	n := serving(t)
	n.idle.Store(true)
	pod := n.pod("no-flows", 40)
	c := n.sandbox(pod, newID())
	ended := make(chan error, 1)
	go func() { _, err := c.add(); ended <- err }()
	n.eventually("the port is there", func() bool { return len(n.interfaces()) == 1 })
	must(t, n.api.Delete(t.Context(), pod, client.GracePeriodSeconds(30)))
	var err error
	eventually.Wait{For: "the end of the ADD", Limit: 30 * time.Second}.Holds(t, func() bool {
		select {
		case err = <-ended:
			return true
		default:
			return false
		}
	})
	if err == nil || !strings.Contains(err.Error(), "was deleted before its port was ready") {
		t.Errorf("ADD returned %v", err)
	}
}

func TestWaitSaysWhatIsMissing(t *testing.T) {
	n := newNode(t)
	pods := watchPods(t, n)

	bare, refused, broken := n.createPod("bare"), n.createPod("refused"), n.createPod("broken")
	for i, reason := range []string{"OlderReason", "AcquireAddressFailed"} {
		must(t, n.api.Create(t.Context(), &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{GenerateName: "refused-", Namespace: "default"},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: refused.Name, UID: refused.UID},
			Reason:         reason, Message: "subnet ovn-default is full", Type: corev1.EventTypeWarning, Action: "Reconcile",
			ReportingController: "kube-ovn-controller", ReportingInstance: "c", EventTime: metav1.NewMicroTime(time.Now().Add(time.Duration(i) * time.Second)),
		}))
	}
	base := broken.DeepCopy()
	broken.Annotations = map[string]string{v1.AnnotationMACAddress.Key(): "not-a-mac"}
	must(t, n.api.Patch(t.Context(), broken, client.MergeFrom(base)))
	other := n.pod("other", 500) // the last object, so that the cache has the others too
	n.eventually("the last pod is known", func() bool {
		known, err := pods.Exists(t.Context(), client.ObjectKeyFromObject(other), other.UID)
		return known && err == nil
	})

	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want string
	}{
		"a pod that the controller has not seen":  {bare, "kube-ovn-controller has not written the annotation ovn.kubernetes.io/allocated"},
		"a pod that the controller has refused":   {refused, "(AcquireAddressFailed: subnet ovn-default is full)"},
		"a pod with annotations that are no good": {broken, `ovn.kubernetes.io/mac_address="not-a-mac"`},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			_, _, err := pods.Wait(ctx, client.ObjectKeyFromObject(c.pod), c.pod.UID, v1.ProviderOVN)
			if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
	for name, key := range map[string]string{"a pod that is not there": "nowhere", "a pod whose name another one has": "other"} {
		t.Run(name, func(t *testing.T) {
			_, _, err := pods.Wait(t.Context(), client.ObjectKey{Namespace: "default", Name: key}, "u", v1.ProviderOVN)
			if err == nil || !strings.Contains(err.Error(), "was deleted before it had an address") {
				t.Errorf("got %v", err)
			}
		})
	}
	if _, network, err := pods.Wait(t.Context(), client.ObjectKeyFromObject(other), "", v1.ProviderOVN); err != nil || len(network.Addresses) != 2 {
		t.Errorf("a runtime without UIDs gets %v, %v", network, err)
	}
}
