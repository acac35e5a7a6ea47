// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package k8s_test

import (
	"context"
	"errors"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/kiln-net/kiln/internal/k8s"
)

func TestFind(t *testing.T) {
	g := NewWithT(t)
	failing := errors.New("no connection")
	reader := fake.NewClientBuilder().
		WithObjects(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "present"}}).
		WithInterceptorFuncs(interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				switch key.Name {
				case "unreachable":
					return failing
				case "forbidden":
					return apierrors.NewForbidden(corev1.Resource("nodes"), key.Name, failing)
				}
				return c.Get(ctx, key, o, opts...)
			},
		}).Build()
	find := func(name string) (*corev1.Node, error) {
		return k8s.Find[corev1.Node](t.Context(), reader, client.ObjectKey{Name: name})
	}

	node, err := find("present")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(node.Name).To(Equal("present"))

	node, err = find("missing")
	g.Expect(err).NotTo(HaveOccurred(), "an object that does not exist is no error")
	g.Expect(node).To(BeNil())

	for _, name := range []string{"unreachable", "forbidden"} {
		node, err = find(name)
		g.Expect(err).To(HaveOccurred(), "an unknown state is not the same as a missing object")
		g.Expect(node).To(BeNil())
	}
}
