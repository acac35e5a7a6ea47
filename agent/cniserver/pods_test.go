// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cniserver_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/agent/agenttest"
	"github.com/kiln-net/kiln/agent/cniserver"
	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/must"
)

// watchPods watches the pods of the API server until the test ends.
func watchPods(t *testing.T, n *agenttest.Node) *cniserver.Pods {
	t.Helper()
	watch, err := cache.New(n.Config, cache.Options{Scheme: n.API.Scheme()})
	must.Succeed(t, err)
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	go func() { _ = watch.Start(ctx) }()
	pods, err := cniserver.NewPods(ctx, watch, n.API)
	must.Succeed(t, err)
	n.Eventually("the pods are known", pods.Synced)
	return pods
}

// The kubelet stops a pod only after its ADD has returned, so an ADD that keeps waiting delays the deletion by up to 100 s.
func TestWaitEndsWhenThePodIsBeingDeleted(t *testing.T) {
	n := agenttest.NewNode(t)
	pods := watchPods(t, n)
	pod := n.CreatePod("waiting")
	n.Eventually("the pod is known", func() bool {
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
	must.Succeed(t, n.API.Delete(t.Context(), pod, client.GracePeriodSeconds(30)))
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "is being deleted") {
			t.Errorf("Wait returned %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("Wait does not return for a pod that is being deleted")
	}
}

// An ADD also waits for the flows of its port.
func TestADDEndsWhenThePodIsDeletedBeforeItsFlows(t *testing.T) {
	n := agenttest.Serving(t)
	n.Idle.Store(true)
	pod := n.Pod("no-flows", 40)
	c := n.Sandbox(pod, agenttest.NewID())
	ended := make(chan error, 1)
	go func() { _, err := c.Add(); ended <- err }()
	n.Eventually("the port is there", func() bool { return len(n.Interfaces()) == 1 })
	must.Succeed(t, n.API.Delete(t.Context(), pod, client.GracePeriodSeconds(30)))
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

func TestWaitNamesTheMissingPart(t *testing.T) {
	n := agenttest.NewNode(t)
	pods := watchPods(t, n)

	bare, refused, broken := n.CreatePod("bare"), n.CreatePod("refused"), n.CreatePod("broken")
	for i, reason := range []string{"OlderReason", "AcquireAddressFailed"} {
		must.Succeed(t, n.API.Create(t.Context(), &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{GenerateName: "refused-", Namespace: "default"},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: refused.Name, UID: refused.UID},
			Reason:         reason, Message: "subnet ovn-default is full", Type: corev1.EventTypeWarning, Action: "Reconcile",
			ReportingController: "kube-ovn-controller", ReportingInstance: "c", EventTime: metav1.NewMicroTime(time.Now().Add(time.Duration(i) * time.Second)),
		}))
	}
	base := broken.DeepCopy()
	broken.Annotations = map[string]string{v1.AnnotationMACAddress.Key(): "not-a-mac"}
	must.Succeed(t, n.API.Patch(t.Context(), broken, client.MergeFrom(base)))
	other := n.Pod("other", 500) // the last object, so that the cache has the others too
	n.Eventually("the last pod is known", func() bool {
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
