// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
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
	w.fails("no pod of ovs-ovn runs on node node-1", "tcpdump", "web")
	component := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-ovn-cni-a", Labels: map[string]string{componentLabel: agent}},
		Spec: corev1.PodSpec{
			NodeName: "node-1", ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}}, Containers: []corev1.Container{{Name: "agent", Image: "registry.example/kiln:1"}},
		},
	}
	must.Succeed(w, w.objects.Create(t.Context(), component))
	component.Status.Phase = corev1.PodRunning
	must.Succeed(w, w.objects.Status().Update(t.Context(), component))
	for _, c := range []struct {
		flags, image, rights string
		secrets              int
	}{
		{"", "registry.example/kiln:1", "[NET_RAW]", 1},
		{"--image=registry.example/tools:1", "registry.example/tools:1", "[NET_RAW SETUID SETGID]", 0},
	} {
		made := w.captureUntilFailure(t, strings.Fields("tcpdump "+c.flags+" web -c 1")...)
		container := made.Spec.Containers[0]
		if made.Spec.NodeName != "node-1" || !made.Spec.HostNetwork || made.Spec.ActiveDeadlineSeconds == nil || container.Image != c.image ||
			fmt.Sprint(container.SecurityContext.Capabilities.Add) != c.rights || container.SecurityContext.Privileged != nil ||
			*made.Spec.AutomountServiceAccountToken || len(made.Spec.ImagePullSecrets) != c.secrets {
			t.Errorf("%q: the pod of tcpdump is %+v", c.flags, made.Spec)
		}
	}
	var left corev1.PodList
	must.Succeed(w, w.objects.List(t.Context(), &left, client.InNamespace("kube-system")))
	if len(left.Items) != 1 {
		t.Errorf("the pods %v are there; want the one of the component only", left.Items)
	}
}

// captureUntilFailure runs `kubectl ko tcpdump`, and returns its pod, which it reports as failed.
func (w *world) captureUntilFailure(t *testing.T, args ...string) *corev1.Pod {
	t.Helper()
	events, err := w.objects.Watch(t.Context(), &corev1.PodList{}, client.InNamespace("kube-system"))
	must.Succeed(w, err)
	defer events.Stop()
	ended := make(chan error, 1)
	go func() {
		_, err := w.ko(args...)
		ended <- err
	}()
	for event := range events.ResultChan() {
		made, is := event.Object.(*corev1.Pod)
		if !is || event.Type != watch.Added || !strings.HasPrefix(made.Name, "kubectl-ko-tcpdump-") {
			continue
		}
		made.Status.Phase, made.Status.Message = corev1.PodFailed, "no room on the node"
		must.Succeed(w, w.objects.Status().Update(t.Context(), made))
		if err := <-ended; err == nil || !strings.Contains(err.Error(), "it has ended: no room on the node") {
			t.Errorf("the error is %v", err)
		}
		return made
	}
	t.Fatal("the watch of pods has ended")
	return nil
}

func TestTcpdumpWritesNoFileInThePod(t *testing.T) {
	for args, want := range map[string]string{
		"-c 1 -w out.pcap":  "out.pcap",
		"-wout.pcap icmp":   "out.pcap",
		"-w - -c 1":         "",
		"-w- -c 1":          "",
		"-n tcp port 80":    "",
		"host www.example":  "",
		"-c 1 -w":           "",
		"-w - port 1 -w b ": "b",
	} {
		if got := savefile(strings.Fields(args)); got != want {
			t.Errorf("%q: the file is %q, want %q", args, got, want)
		}
	}
	w := newWorld(t)
	w.fails("`-w - >out.pcap`", "tcpdump", "default/web", "-w", "out.pcap")
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
