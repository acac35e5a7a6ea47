// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/envcheck"
	"github.com/kiln-net/kiln/internal/netprobe"
	"github.com/kiln-net/kiln/internal/testing/must"
)

// nodesWorld is a cluster with two nodes, and a run of the check of nodes in it.
type nodesWorld struct {
	*network
	run     *nodesRun
	cluster *envcheck.Cluster
	spec    *v1alpha1.OVNClusterSpec
	// problems are the findings of nodes, and lost are the paths on which small packets ("a→b") or large ones ("a→b large") are lost.
	problems map[string][]envcheck.Finding
	lost     map[string]bool
	skew     time.Duration
}

func newNodesWorld(t *testing.T, o podRunFlags) *nodesWorld {
	w := &nodesWorld{network: newNetwork(t), problems: map[string][]envcheck.Finding{}, lost: map[string]bool{}, spec: &v1alpha1.OVNClusterSpec{}, cluster: &envcheck.Cluster{}}
	for _, name := range []string{"node-1", "node-2"} {
		w.cluster.Nodes = append(w.cluster.Nodes, corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelOSStable: "linux"}},
			Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: addressOfNode(name).String()}}},
		})
	}
	o.maxNodes = 8
	w.run = w.newNodesRun(o)
	w.run.startTime, w.run.removal, w.run.probe = 30*time.Second, 30*time.Second, w.packets
	w.run.check = func(_ context.Context, in *corev1.Pod, s envcheck.NodeSettings) (envcheck.NodeReport, error) {
		return envcheck.NodeReport{
			Findings: w.problems[in.Spec.NodeName], Time: time.Now().Add(w.skew),
			Tunnel: envcheck.TunnelEnd{Device: "eth0", Address: s.Addresses[0], MTU: 1500},
		}, nil
	}
	w.run.firewall = func(context.Context, *corev1.Pod) ([]byte, error) { return []byte(`{"nftables": []}`), nil }
	return w
}

func addressOfNode(name string) netip.Addr {
	return netip.MustParseAddr("192.0.2." + strings.TrimPrefix(name, "node-"))
}

func (w *nodesWorld) packets(_ context.Context, from *corev1.Pod, targets []netprobe.Target) ([]netprobe.Answer, error) {
	answers := make([]netprobe.Answer, len(targets))
	for i, t := range targets {
		way := from.Spec.NodeName + "→node-" + strings.TrimPrefix(netip.MustParseAddrPort(t.Address).Addr().String(), "192.0.2.")
		if w.lost[way] {
			answers[i].Error = "i/o timeout"
		}
		if t.Size != 0 && w.lost[way+" large"] {
			answers[i].Error = "a packet of 1458 bytes is too large: the path takes 1400"
		}
	}
	return answers, nil
}

// report checks the nodes, and returns the findings of the report as text.
func (w *nodesWorld) report(ctx context.Context) string {
	w.Helper()
	report := envcheck.Environment(w.cluster, w.spec)
	must.Succeed(w, w.run.checkNodes(ctx, report, w.cluster, w.spec))
	text := &strings.Builder{}
	must.Succeed(w, report.WriteText(text))
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.run.name}}
	if err := w.objects.Get(context.Background(), client.ObjectKeyFromObject(namespace), namespace); !apierrors.IsNotFound(err) {
		w.Errorf("the namespace of the check is left: %v", err)
	}
	return text.String()
}

func (w *nodesWorld) has(text string, wanted ...string) {
	w.Helper()
	for _, want := range wanted {
		if !strings.Contains(text, want) {
			w.Errorf("want %q in\n%s", want, text)
		}
	}
}

func TestEnvironmentOfNodes(t *testing.T) {
	w := newNodesWorld(t, podRunFlags{})
	w.problems["node-2"] = []envcheck.Finding{{Level: envcheck.Failed, Subject: "Kernel modules", Message: "no openvswitch\x1b[31m"}, {Level: "carried", Subject: "x", Message: "of no check"}}
	text := w.report(t.Context())
	w.has(text, "no openvswitch?[31m (nodes node-2)", "packets of 1458 bytes, the largest ones of tunnels, pass on 2 paths without fragments (port 6081/udp)", "no chain of nftables that drops by default (nodes node-1, node-2)")
	if strings.Contains(text, "manual") || strings.Contains(text, "of no check") {
		t.Errorf("all nodes were checked:\n%s", text)
	}
	for _, pod := range w.run.wanted {
		checks, server := pod.Spec.Containers[0], pod.Spec.Containers[1]
		if pod.Spec.HostPID || checks.SecurityContext.Privileged != nil || len(checks.SecurityContext.Capabilities.Add) != 1 || len(server.SecurityContext.Capabilities.Add) != 0 || len(server.VolumeMounts) != 0 {
			t.Errorf("rights of the pod: %+v", pod.Spec)
		}
		for _, m := range checks.VolumeMounts {
			if !m.ReadOnly {
				t.Errorf("mount %s is writable", m.MountPath)
			}
		}
		if pod.Spec.Containers[0].Image != "registry.example/kiln:"+pod.Spec.NodeName {
			t.Errorf("image %s", pod.Spec.Containers[0].Image)
		}
	}
}

func TestPathsBetweenNodes(t *testing.T) {
	w := newNodesWorld(t, podRunFlags{})
	w.lost["node-1→node-2"], w.lost["node-2→node-1 large"], w.skew = true, true, time.Hour
	w.has(w.report(t.Context()), "failed   Packets between nodes", "port 6081/udp, the port of tunnels, get no answer: node-1 → node-2: open it in the firewalls",
		"packets of 1458 bytes, the largest ones of tunnels, do not pass without fragments: node-2 → node-1 (a packet of 1458 bytes is too large: the path takes 1400)", "its clock differs by 1h0m0s")
}

// TestPathsOfAnInstalledCluster: the kernel has the port of tunnels, so that another port shows the path.
func TestPathsOfAnInstalledCluster(t *testing.T) {
	w := newNodesWorld(t, podRunFlags{})
	w.cluster.Pods = []corev1.Pod{{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{v1alpha1.PartOfLabel: v1alpha1.PartOf, v1alpha1.ComponentLabel: openVSwitch}}, Spec: corev1.PodSpec{NodeName: "node-1"},
	}}
	w.lost["node-1→node-2"] = true
	w.has(w.report(t.Context()), "warning  Packets between nodes", "packets to port 12866/udp get no answer: node-1 → node-2: their path was not checked")
}

func TestSomeNodes(t *testing.T) {
	w := newNodesWorld(t, podRunFlags{nodes: []string{"node-2"}, image: "registry.example/other"})
	text := w.report(t.Context())
	w.has(text, "(nodes node-2)", "the API does not show them. On each node run")
	if strings.Contains(text, "node-1") || len(w.run.wanted) != 1 || w.run.wanted[0].Spec.Containers[1].Image != "registry.example/other" {
		t.Errorf("%s", text)
	}
}

func TestNodesThatAreNotChecked(t *testing.T) {
	w := newNodesWorld(t, podRunFlags{nodes: []string{"node-3"}})
	w.has(w.report(t.Context()), "nodes were not checked: there is no Linux node node-3")

	w.run = w.newNodesRun(podRunFlags{maxNodes: 8})
	must.Succeed(t, w.objects.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace(metav1.NamespaceSystem), client.GracePeriodSeconds(0)))
	w.has(w.report(t.Context()), "nodes were not checked: the image is not known, because Kiln is not installed: name it with --image")

	w.as("reader")
	w.allow("reader", rule("", "pods", "list"))
	w.run = w.newNodesRun(podRunFlags{maxNodes: 8, image: "registry.example/kiln"})
	w.has(w.report(t.Context()), "nodes were not checked: nothing was created, because you may not: create namespaces", "the API does not show them. On each node run")
}

// TestABrokenNode: the check of a node that fails, or does not start, does not stop the others.
func TestABrokenNode(t *testing.T) {
	w := newNodesWorld(t, podRunFlags{})
	w.run.startTime = 20 * time.Second // in which a busy machine starts the others
	w.late = func(pod *corev1.Pod) bool { return pod.Spec.NodeName == "node-2" }
	check := w.run.check
	w.run.check = func(ctx context.Context, in *corev1.Pod, s envcheck.NodeSettings) (envcheck.NodeReport, error) {
		if in.Spec.NodeName == "node-1" {
			return envcheck.NodeReport{}, errors.New("the kubelet does not answer")
		}
		return check(ctx, in, s)
	}
	w.has(w.report(t.Context()), "its pod does not run: the lines above the report have the reason (nodes node-2)", "it was not checked: check the node: the kubelet does not answer (nodes node-1)", "the API does not show them. On each node run")
}

func TestFlagsOfEnvironmentOfNodes(t *testing.T) {
	w := newWorld(t)
	for flag, want := range map[string]string{"--migrate": "--node has no effect", "--pods=false": "--node has no effect", "--max-nodes=0": "--max-nodes must be greater than 0"} {
		if text, err := w.ko("env-check", "--node=a", flag); code(err) != exitUnread || !strings.Contains(text, want) {
			t.Errorf("%s: exit code %d: %s", flag, code(err), text)
		}
	}
	if text, _ := w.ko("env-check", "--pods=false"); strings.Contains(text, "nodes were not checked") {
		t.Errorf("without pods:\n%s", text)
	}
}
