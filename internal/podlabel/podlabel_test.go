// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package podlabel

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	clienttesting "k8s.io/client-go/testing"
)

func TestLabelFollowsAndIsWithdrawn(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "ovn-central-nb-0", Labels: map[string]string{
		"app": "ovn-central", NorthboundLeader: "true", // left by the previous container
	}}}
	client := fake.NewClientset(pod)
	written, failures := make(chan string, 100), 2
	client.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch, ok := action.(clienttesting.PatchAction)
		if !ok {
			return false, nil, nil
		}
		if failures > 0 { // the API server is unavailable at first
			failures--
			return true, nil, errors.New("connection refused")
		}
		var body struct {
			Metadata struct{ Labels map[string]string }
		}
		if err := json.Unmarshal(patch.GetPatch(), &body); err != nil {
			return true, nil, err
		}
		written <- body.Metadata.Labels[NorthboundLeader]
		return false, nil, nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	leads, done := make(chan bool), make(chan struct{})
	go func() {
		defer close(done)
		Label{Pods: client.CoreV1().Pods("kube-system"), Pod: pod.Name, Key: NorthboundLeader, Log: testr.New(t)}.Run(ctx, leads)
	}()
	expect := func(want string) {
		t.Helper()
		if got := <-written; got != want {
			t.Fatalf("label %q, want %q", got, want)
		}
	}
	expect("false")
	leads <- true
	expect("true")
	leads <- false
	expect("false")
	leads <- true
	expect("true")
	cancel()
	<-done
	expect("false")
	got, err := client.CoreV1().Pods("kube-system").Get(t.Context(), pod.Name, metav1.GetOptions{})
	if err != nil || got.Labels[NorthboundLeader] != "false" || got.Labels["app"] != "ovn-central" {
		t.Errorf("labels %v, %v", got.Labels, err)
	}
}

// TestAValueThatCannotBeWrittenIsReplacedByTheNext checks that the sender of values does not block while the API server fails, and
// that the newest value is written once it serves again.
func TestAValueThatCannotBeWrittenIsReplacedByTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "ovn-central-northd-0"}}
		client := fake.NewClientset(pod)
		var serves atomic.Bool
		client.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			if !serves.Load() {
				return true, nil, errors.New("connection refused")
			}
			return false, nil, nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		values, done := make(chan string), make(chan struct{})
		go func() {
			defer close(done)
			Label{Pods: client.CoreV1().Pods("kube-system"), Pod: pod.Name, Key: NorthdMembers, Log: logr.Discard()}.Follow(ctx, values)
		}()
		for _, value := range []string{"a", "b", "c"} {
			select {
			case values <- value:
			case <-time.After(time.Hour): // in synctest's clock
				t.Fatalf("the value %s is not received while the API server fails", value)
			}
		}
		serves.Store(true)
		time.Sleep(time.Minute)
		synctest.Wait()
		got, err := client.CoreV1().Pods("kube-system").Get(t.Context(), pod.Name, metav1.GetOptions{})
		if err != nil || got.Labels[NorthdMembers] != "c" {
			t.Errorf("labels %v, %v", got.Labels, err)
		}
		cancel()
		<-done
	})
}

// late is an API server that applies the first patches only after a delay, even if the client has cancelled the request.
type late struct {
	typedv1.PodInterface
	delays []time.Duration
}

func (l *late) Patch(
	ctx context.Context, name string, kind types.PatchType, data []byte, o metav1.PatchOptions, subresources ...string,
) (*corev1.Pod, error) {
	if len(l.delays) == 0 {
		return l.PodInterface.Patch(ctx, name, kind, data, o, subresources...)
	}
	delay, applied := l.delays[0], make(chan error, 1)
	l.delays = l.delays[1:]
	go func() {
		time.Sleep(delay)
		_, err := l.PodInterface.Patch(context.WithoutCancel(ctx), name, kind, data, o, subresources...)
		applied <- err
	}()
	select {
	case err := <-applied:
		return nil, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// TestARequestMayWaitInTheAPIServersQueue checks that a slow request without a newer value is not cancelled and sent again, which would put
// it at the end of the API server's queue.
func TestARequestMayWaitInTheAPIServersQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "ovn-central-northd-0"}}
		pods := &late{PodInterface: fake.NewClientset(pod).CoreV1().Pods("kube-system"), delays: []time.Duration{time.Minute, time.Hour}}
		began := time.Now()
		Label{Pods: pods, Pod: pod.Name, Key: NorthdMembers, Log: logr.Discard()}.Put(t.Context(), "a")
		if took := time.Since(began); took != time.Minute { // in synctest's clock
			t.Errorf("the label is written after %s, want a minute", took)
		}
	})
}

// TestANewerValueIsWrittenAfterTheRequestOfAnOlderOne checks that the sender does not block during a request, and that a request without a
// response delays the newer value for a limited time.
func TestANewerValueIsWrittenAfterTheRequestOfAnOlderOne(t *testing.T) {
	for name, c := range map[string]struct {
		delay, within time.Duration
	}{
		"the request is slow": {2 * time.Second, 3 * time.Second},
		"the request hangs":   {time.Hour, supersededTimeout + time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "ovn-central-northd-0"}}
				pods := &late{PodInterface: fake.NewClientset(pod).CoreV1().Pods("kube-system"), delays: []time.Duration{c.delay}}
				ctx, cancel := context.WithCancel(t.Context())
				values, done := make(chan string), make(chan struct{})
				go func() {
					defer close(done)
					Label{Pods: pods, Pod: pod.Name, Key: NorthdMembers, Log: logr.Discard()}.Follow(ctx, values)
				}()
				began := time.Now()
				for _, value := range []string{"a", "b", "c"} {
					values <- value
				}
				if took := time.Since(began); took > 0 { // in synctest's clock
					t.Errorf("the sender was blocked for %s", took)
				}
				time.Sleep(c.within)
				got, err := pods.Get(t.Context(), pod.Name, metav1.GetOptions{})
				if err != nil || got.Labels[NorthdMembers] != "c" {
					t.Errorf("after %s: labels %v, %v", c.within, got.Labels, err)
				}
				cancel()
				<-done
				time.Sleep(2 * time.Hour) // until the delayed patch ends
			})
		})
	}
}
