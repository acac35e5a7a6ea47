// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/testing/golden"
	"github.com/kiln-net/kiln/internal/testing/must"
)

func TestVersionOfTheClientNeedsNoAPIServer(t *testing.T) {
	t.Setenv("KUBECONFIG", "/does/not/exist")
	if out, err := run("version", "--client"); err != nil || out != "kubectl-ko dev\n" {
		t.Errorf("%q, %v", out, err)
	}
	out, err := run("version")
	if err == nil || out != "kubectl-ko dev\n" {
		t.Errorf("%q, %v; want the client's version, and an error", out, err)
	}
}

func TestVersions(t *testing.T) {
	w := newWorld(t)
	must.Succeed(w, w.objects.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "kiln-operator-0", Namespace: metav1.NamespaceSystem, Labels: map[string]string{componentLabel: operatorComponent}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "operator", Image: "registry.example/kiln:v0.2.0"}}},
	}))
	oc := &v1alpha1.OVNCluster{}
	must.Succeed(w, w.objects.Get(t.Context(), client.ObjectKey{Name: v1alpha1.OVNClusterName}, oc))
	oc.Status.Components = []v1alpha1.ComponentStatus{
		{Name: "ovn-central-nb", Versions: []v1alpha1.ComponentVersion{{Kiln: "v0.2.0", OpenVSwitch: "3.5.0", Pods: 3, Nodes: []string{"a", "b", "c"}}}},
		{Name: "ovs-ovn", Versions: []v1alpha1.ComponentVersion{
			{Kiln: "v0.1.0", OVN: "25.03.0", OpenVSwitch: "3.5.0", Pods: 12, Nodes: []string{"a", "b"}}, {Kiln: "v0.2.0", OVN: "25.03.0", OpenVSwitch: "3.5.0", Pods: 1, Nodes: []string{"c"}},
		}},
		{Name: "kube-ovn-controller"},
	}
	must.Succeed(w, w.objects.Status().Update(t.Context(), oc))
	out, err := w.ko("version")
	must.Succeed(w, err)
	golden.Compare(t, "testdata/version.txt", []byte(out))
}
