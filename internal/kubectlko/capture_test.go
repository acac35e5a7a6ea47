// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/internal/testing/must"
)

// TestThePodOfTcpdumpIsDeleted runs tcpdump for a pod of the node's network. There is no kubelet here: the test reports the end of the pod.
func TestThePodOfTcpdumpIsDeleted(t *testing.T) {
	w := newWorld(t)
	must.Succeed(w, w.objects.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec:       corev1.PodSpec{NodeName: "node-1", HostNetwork: true, Containers: []corev1.Container{{Name: "web", Image: "web"}}},
	}))
	events, err := w.objects.Watch(t.Context(), &corev1.PodList{}, client.InNamespace("kube-system"))
	must.Succeed(w, err)
	defer events.Stop()
	ended := make(chan error, 1)
	go func() {
		_, err := w.ko("tcpdump", "--image=registry.example/tools:1", "web", "-c", "1")
		ended <- err
	}()
	made := (<-events.ResultChan()).Object.(*corev1.Pod)
	c := made.Spec.Containers[0]
	if made.Spec.NodeName != "node-1" || !made.Spec.HostNetwork || made.Spec.ActiveDeadlineSeconds == nil || c.Image != "registry.example/tools:1" ||
		c.SecurityContext.Privileged != nil || *made.Spec.AutomountServiceAccountToken {
		t.Errorf("the pod of tcpdump is %+v", made.Spec)
	}
	made.Status.Phase, made.Status.Message = corev1.PodFailed, "no room on the node"
	must.Succeed(w, w.objects.Status().Update(t.Context(), made))
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "it has ended: no room on the node") {
		t.Errorf("the error is %v", err)
	}
	var left corev1.PodList
	must.Succeed(w, w.objects.List(t.Context(), &left, client.InNamespace("kube-system")))
	if len(left.Items) > 0 {
		t.Errorf("the pod %s is still there", left.Items[0].Name)
	}
}

func TestTcpdumpNamesAMissingPod(t *testing.T) {
	w := newWorld(t)
	if _, err := w.ko("tcpdump", "default/none"); err == nil || !strings.Contains(err.Error(), `pods "none" not found`) {
		t.Errorf("a pod that does not exist: %v", err)
	}
	if _, err := w.ko("tcpdump", "default/none", "-c", "1", "icmp"); err == nil || strings.Contains(err.Error(), "flag") {
		t.Errorf("flags of tcpdump: %v", err)
	}
}
