// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/must"
)

// TestANodeJoinsThoughAPodHasItsPortName creates a pod, then a node with the same port name, and deletes the node again.
func TestANodeJoinsThoughAPodHasItsPortName(t *testing.T) {
	c := useAPIServer(t)
	certificates := newCertificates(t)
	listen(t, certificates, 8, nbtest.Start(t))
	newCluster(t, c, 8)
	must.Succeed(t, c.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}))
	startController(t, certificates, "controller", os.Getenv("KUBECONFIG"), healthAt(13), long...)
	must.Succeed(t, c.Create(t.Context(), newPod("node-a")))
	recorded := func(subnet, namespace string) func() string {
		return func() string {
			ip := &kubeovnv1.IP{}
			if err := c.Get(t.Context(), client.ObjectKey{Name: "node-a.default"}, ip); err != nil {
				return err.Error()
			}
			if ip.Spec.Subnet != subnet || ip.Spec.Namespace != namespace {
				return fmt.Sprintf("the IP object is of subnet %q and namespace %q, want %q and %q", ip.Spec.Subnet, ip.Spec.Namespace, subnet, namespace)
			}
			return ""
		}
	}
	eventually.Until(t, recorded("ovn-default", "default"))

	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a.default"}}
	must.Succeed(t, c.Create(t.Context(), node))
	eventually.Until(t, recorded(kubeovnv1.JoinSubnet, ""))
	eventually.Until(t, func() string {
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(node), node); err != nil {
			return err.Error()
		}
		if got := node.Annotations[kubeovnv1.AnnotationPortName.Key()]; got != "node-a.default" {
			return fmt.Sprintf("the node's port is %q", got)
		}
		return ""
	})

	must.Succeed(t, c.Delete(t.Context(), node))
	eventually.Until(t, recorded("ovn-default", "default"))
}
