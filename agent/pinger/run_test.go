// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pinger

import (
	"net"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
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
	began := time.Now()
	if pods, err := p.Pods(t.Context()); err == nil || time.Since(began) > 5*listTimeout {
		t.Errorf("%d pods, %v, after %s", len(pods), err, time.Since(began))
	}
	if results := p.checkAPIServer(t.Context()); results[0].Err == nil {
		t.Errorf("%+v", results)
	}
}
