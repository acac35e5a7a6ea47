// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/kiln-net/kiln/internal/testing/must"
)

// TestClear has objects that stay, and objects of a test in its own namespace, with finalizers, and of one of our kinds.
func TestClear(t *testing.T) {
	server, err := New("subnets")
	must.Succeed(t, err)
	config, err := server.Start()
	must.Succeed(t, err)
	t.Cleanup(func() { must.Succeed(t, server.Stop()) })
	admin, err := kubernetes.NewForConfig(config)
	must.Succeed(t, err)
	ours, err := dynamic.NewForConfig(config)
	must.Succeed(t, err)
	maps := func(namespace string) []string {
		t.Helper()
		list, err := admin.CoreV1().ConfigMaps(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "of=test"})
		must.Succeed(t, err)
		names := []string{}
		for i := range list.Items {
			names = append(names, list.Items[i].Name)
		}
		return names
	}
	create := func(namespace, name string, finalizers ...string) {
		t.Helper()
		object := metav1.ObjectMeta{Name: name, Labels: map[string]string{"of": "test"}, Finalizers: finalizers}
		_, err := admin.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: object}, metav1.CreateOptions{})
		must.Succeed(t, err)
	}
	create("default", "stays")
	shared, err := server.Share(t.Context())
	must.Succeed(t, err)
	for range 2 { // the second test uses the names of the first
		create("default", "one")
		create("kube-system", "held", "example.com/held")
		_, err = admin.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "web"}}, metav1.CreateOptions{})
		must.Succeed(t, err)
		create("web", "two")
		subnet := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "kubeovn.io/v1", "kind": "Subnet", "spec": map[string]any{"cidrBlock": "10.1.0.0/16"},
			"metadata": map[string]any{"name": "s", "finalizers": []any{"example.com/held"}},
		}}
		subnets := ours.Resource(schema.GroupVersionResource{Group: "kubeovn.io", Version: "v1", Resource: "subnets"})
		_, err = subnets.Create(t.Context(), subnet, metav1.CreateOptions{})
		must.Succeed(t, err)

		must.Succeed(t, shared.Clear(t.Context()))
		if in, system := maps("default"), maps("kube-system"); len(in) != 1 || in[0] != "stays" || len(system) != 0 {
			t.Errorf("left in default: %v, in kube-system: %v; want only what was there before", in, system)
		}
		if _, err := admin.CoreV1().Namespaces().Get(t.Context(), "web", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("namespace web: %v", err)
		}
		if _, err := subnets.Get(t.Context(), "s", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("subnet s: %v", err)
		}
		if list := maps("web"); len(list) != 0 {
			t.Errorf("left in namespace web: %v", list)
		}
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if shared.Clear(ended) == nil {
		t.Error("Clear cannot list objects, and returns no error")
	}
}
