// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/testing/must"
)

// TestPodsWithOVNTrace runs `ovn-trace` and `trace --raw`. There is no kubelet here: the test reports the end of each pod.
func TestPodsWithOVNTrace(t *testing.T) {
	w := newWorld(t)
	w.network("shop", "bank")
	w.runPod("shop", "web", 5)
	w.runPod("bank", "db", 6)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: openVSwitch, Labels: map[string]string{componentLabel: openVSwitch}},
		Spec: corev1.PodSpec{
			NodeName: "n1", ImagePullSecrets: []corev1.LocalObjectReference{{Name: "registry"}},
			Containers: []corev1.Container{{Name: "c", Image: "registry.example/kiln:1", VolumeMounts: []corev1.VolumeMount{{Name: "etc", MountPath: "/etc/openvswitch"}}}},
			Volumes:    []corev1.Volume{nodeVolume("etc", "/var/lib/ovs")},
		},
	}
	w.make(pod)
	pod.Status.Phase = corev1.PodRunning
	must.Succeed(w, w.objects.Status().Update(t.Context(), pod))
	oc := &v1alpha1.OVNCluster{}
	must.Succeed(w, w.objects.Get(t.Context(), client.ObjectKey{Name: v1alpha1.OVNClusterName}, oc))
	oc.Status.Southbound = v1alpha1.DatabaseStatus{Leader: "n1", Members: []v1alpha1.DatabaseMember{{Node: "n1", Address: "192.0.2.1"}, {Node: "n2", Address: "fd00::2"}}}
	must.Succeed(w, w.objects.Status().Update(t.Context(), oc))

	for args, want := range map[string][]string{
		"ovn-trace shop/web bank/db tcp 80": {
			"ovn-trace --no-leader-only --db=ssl:192.0.2.1:6642,ssl:[fd00::2]:6642 --private-key=/etc/kiln/chassis/tls.key ", "--ca-cert=/etc/kiln/trust/sb-server.crt ", `ovn-default inport == "web.shop" && eth.src == 02:00:00:00:00:05 && eth.dst == 02:00:00:00:00:06 && ip4.src == 10.16.0.5`,
			"ipv6: sh -c timeout -s KILL 15 ovn-trace", "ip6.src == fd00:10:16::5 && ip6.dst == fd00:10:16::6", "tcp.dst == 80",
		},
		"trace --raw shop/web 10.16.0.6 udp 53": {"ip4.dst == 10.16.0.6", "udp.dst == 53"},
	} {
		made, err := w.fail(args)
		var commands []string
		for _, c := range made.Spec.Containers {
			commands = append(commands, c.Name+": "+strings.Join(c.Command, " "))
			if c.Image != "registry.example/kiln:1" || c.SecurityContext.Privileged != nil || c.Resources.Limits.Memory().IsZero() {
				t.Errorf("%s: container %+v", args, c)
			}
		}
		text := strings.Join(commands, "\n")
		for _, part := range want {
			if !strings.Contains(text, part) {
				t.Errorf("%s: no %q in %s", args, part, text)
			}
		}
		if made.Spec.NodeName != "n1" || *made.Spec.AutomountServiceAccountToken || !slices.Equal(made.Spec.ImagePullSecrets, []corev1.LocalObjectReference{{Name: "registry"}}) {
			t.Errorf("%s: pod %+v", args, made.Spec)
		}
		for _, v := range made.Spec.Volumes { // the key of the node, and none of a database or of northd
			if v.Secret != nil || v.HostPath != nil && v.HostPath.Path != "/var/lib/ovs/kiln" || v.ConfigMap != nil && v.ConfigMap.Name != "kiln-trust" {
				t.Errorf("%s: volume %+v", args, v)
			}
		}
		if err == nil || !strings.Contains(err.Error(), "it has ended: no room on the node") || strings.Contains(args, "--raw") && codeOf(err) != cannotTell {
			t.Errorf("%s: error %v", args, err)
		}
	}
	w.fails("write it after the address", "ovn-trace", "shop/web", "10.16.0.77", "arp", "reply")
	w.fails("begin at a pod or a node", "ovn-trace", "192.0.2.200", "shop/web", "80")
}

// fail runs a command, ends the pod that it creates with an error, and returns this pod and the error of the command.
func (w *world) fail(args string) (*corev1.Pod, error) {
	w.Helper()
	events, err := w.objects.Watch(w.Context(), &corev1.PodList{}, client.InNamespace("kube-system"), client.MatchingFields{"spec.restartPolicy": "Never"})
	must.Succeed(w, err)
	defer events.Stop()
	ended := make(chan error, 1)
	go func() {
		_, err := w.ko(strings.Fields(args)...)
		ended <- err
	}()
	made := (<-events.ResultChan()).Object.(*corev1.Pod)
	end := made.DeepCopy()
	end.Status.Phase, end.Status.Message = corev1.PodFailed, "no room on the node"
	must.Succeed(w, w.objects.Status().Update(w.Context(), end))
	err = <-ended
	if e := w.objects.Get(w.Context(), client.ObjectKeyFromObject(made), end); client.IgnoreNotFound(e) != nil || e == nil {
		w.Errorf("%s: the pod %s is still there (%v)", args, made.Name, e)
	}
	return made, err
}
