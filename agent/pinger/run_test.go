// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pinger

import (
	"context"
	"errors"
	"net"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/kiln-net/kiln/internal/testing/eventually"
)

// TestPodsAreListedByNamespace checks what the cache of a namespace needs to know of the list of pods.
func TestPodsAreListedByNamespace(t *testing.T) {
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []runtime.Object{&corev1.Pod{}, &corev1.PodList{}} {
		if namespaced, err := apiutil.IsObjectNamespaced(o, scheme, mapper()); err != nil || !namespaced {
			t.Errorf("%T: %t, %v", o, namespaced, err)
		}
	}
}

// TestAnAPIServerThatDoesNotAnswerDelaysNothing has a server that accepts connections and never answers.
func TestAnAPIServerThatDoesNotAnswerDelaysNothing(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	config := &rest.Config{Host: "http://" + listener.Addr().String()}
	reader, err := NewReader(config)
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(config, Options{Node: self, Namespace: "kube-system"}, reader)
	if err != nil {
		t.Fatal(err)
	}
	answer := make(chan error, 1)
	go func() {
		_, err := p.Pods(t.Context())
		answer <- err
	}()
	eventually.Wait{For: "the end of the list of pods"}.Holds(t, func() bool { return len(answer) > 0 })
	if err := <-answer; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the list of pods ended with %v", err)
	}
	if results := p.checkAPIServer(t.Context()); results[0].Err == nil {
		t.Errorf("%+v", results)
	}
}
