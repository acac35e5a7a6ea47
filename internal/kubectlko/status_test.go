// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/testing/must"
)

// report writes the status of the OVNCluster.
func (w *world) report(change func(*v1alpha1.OVNClusterStatus)) {
	w.Helper()
	var oc v1alpha1.OVNCluster
	must.Succeed(w, w.objects.Get(w.Context(), client.ObjectKey{Name: v1alpha1.OVNClusterName}, &oc))
	oc.Status.ObservedGeneration = oc.Generation
	change(&oc.Status)
	must.Succeed(w, w.objects.Status().Update(w.Context(), &oc))
}

func condition(kind string, status metav1.ConditionStatus, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: "Test", Message: message}
}

// setNode creates or updates a Linux node; with an empty status it has no condition.
func (w *world) setNode(name string, unavailable corev1.ConditionStatus) {
	w.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelOSStable: "linux"}}}
	if err := w.objects.Get(w.Context(), client.ObjectKeyFromObject(n), n); err != nil {
		must.Succeed(w, w.objects.Create(w.Context(), n))
	}
	n.Status.Conditions = nil
	if unavailable != "" {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeNetworkUnavailable, Status: unavailable, Reason: "NoGateway", Message: "ovn0 has no address"}}
	}
	must.Succeed(w, w.objects.Status().Update(w.Context(), n))
}

func healthy(s *v1alpha1.OVNClusterStatus) {
	for _, c := range []metav1.Condition{
		condition(v1alpha1.ConditionAvailable, metav1.ConditionTrue, "every component serves"),
		condition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, "everything is as specified"),
		condition(v1alpha1.ConditionDegraded, metav1.ConditionFalse, "nothing needs attention"),
	} {
		meta.SetStatusCondition(&s.Conditions, c)
	}
	s.Components = []v1alpha1.ComponentStatus{{
		Name: "ovs-ovn", Desired: 2, Ready: 2, Updated: 1, Message: "1 of 2 updated",
		Versions: []v1alpha1.ComponentVersion{{Kiln: "v1", OVN: "25.03.0", OpenVSwitch: "3.5.0", Pods: 2}},
	}}
	s.Northbound = v1alpha1.DatabaseStatus{Leader: "node-1", Term: 3, Members: []v1alpha1.DatabaseMember{{Node: "node-1", Address: "192.0.2.1", Role: "leader"}}}
}

func TestStatus(t *testing.T) {
	w := newWorld(t)
	has := func(out string, want ...string) {
		t.Helper()
		for _, text := range want {
			if !strings.Contains(out, text) {
				t.Errorf("no %q in:\n%s", text, out)
			}
		}
	}
	if out, err := w.ko("status"); err == nil {
		t.Errorf("an OVNCluster that was not observed is healthy:\n%s", out)
	}
	w.report(healthy)
	w.setNode("node-1", corev1.ConditionFalse)
	out, err := w.ko("status")
	must.Succeed(w, err)
	has(out, "Available:", "every component serves", "ovs-ovn", "2/2", "1/2", "v1, OVN 25.03.0, OVS 3.5.0", "1 of 2 updated", "node-1 (leader)")

	for i := range maxRows + 2 {
		vlan := &kubeovnv1.Vlan{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("vlan-%d", i)}}
		must.Succeed(w, w.objects.Create(t.Context(), vlan))
		vlan.Status.Conditions = []kubeovnv1.Condition{{Type: kubeovnv1.ConditionReady, Status: metav1.ConditionFalse, Reason: "Test", Message: "has no controller"}}
		must.Succeed(w, w.objects.Status().Update(t.Context(), vlan))
	}
	out, err = w.ko("status")
	must.Succeed(w, err)
	has(out, "Vlan vlan-0", "has no controller", "Vlan: 2 more")

	reserved := &kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: "db.web"}}
	record := &kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: "of-a-pod", Labels: map[string]string{kubeovnv1.LabelReserved: kubeovnv1.ReservedForPod}}}
	for _, ip := range []*kubeovnv1.IP{reserved, record} {
		must.Succeed(w, w.objects.Create(t.Context(), ip))
		ip.Status.Conditions = []kubeovnv1.Condition{condition(kubeovnv1.ConditionReady, metav1.ConditionFalse, "address 10.16.0.9 is taken by "+ip.Name)}
		must.Succeed(w, w.objects.Status().Update(t.Context(), ip))
	}
	out, err = w.ko("status")
	must.Succeed(w, err)
	has(out, "IP db.web", "taken by db.web")
	if strings.Contains(out, "of-a-pod") {
		t.Errorf("the records of pods are read, too:\n%s", out)
	}
	for _, ip := range []*kubeovnv1.IP{reserved, record} {
		must.Succeed(w, w.objects.Delete(t.Context(), ip))
	}

	subnet := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "central"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.90.0.0/24"}}
	must.Succeed(w, w.objects.Create(t.Context(), subnet))
	for _, c := range []metav1.Condition{
		condition(kubeovnv1.ConditionReady, metav1.ConditionFalse, "no node of gatewayNode exists"),
		condition(kubeovnv1.ConditionGatewayReady, metav1.ConditionFalse, "no node of gatewayNode exists"),
		condition(kubeovnv1.ConditionFieldsSupported, metav1.ConditionFalse, "without effect in this version: mtu"),
	} {
		meta.SetStatusCondition(&subnet.Status.Conditions, c)
	}
	must.Succeed(w, w.objects.Status().Update(t.Context(), subnet))
	must.Succeed(w, w.objects.Create(t.Context(), &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: "web.1", Namespace: "default"},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "web"},
		Reason:         kubeovnv1.ReasonPortRestored, Message: "its port was missing",
	}))
	out, err = w.ko("status")
	must.Succeed(w, err)
	has(out, "OBJECT WITH A FALSE CONDITION", "FieldsSupported Test", "without effect in this version: mtu", "POD WHOSE PORT WAS MISSING", "default/web", "its port was missing")
	if n := strings.Count(out, "no node of gatewayNode exists"); n != 1 {
		t.Errorf("the cause of Ready is reported %d times:\n%s", n, out)
	}
	must.Succeed(w, w.objects.Delete(t.Context(), subnet))

	for _, node := range []struct {
		unavailable corev1.ConditionStatus
		says        string
	}{{corev1.ConditionTrue, "ovn0 has no address"}, {"", "its agent has not reported a network yet"}} {
		w.setNode("node-2", node.unavailable)
		out, err := w.ko("status", "-o", "json")
		var s Status
		if jsonErr := json.Unmarshal([]byte(out), &s); jsonErr != nil || err == nil || s.Healthy || s.Settled {
			t.Fatalf("%v, %v, with a node without network:\n%s", err, jsonErr, out)
		}
		if len(s.NodesWithoutNetwork) != 1 || s.NodesWithoutNetwork[0].Name != "node-2" || !strings.Contains(s.NodesWithoutNetwork[0].Message, node.says) {
			t.Errorf("nodes without network: %+v", s.NodesWithoutNetwork)
		}
		if len(s.NotReady) != maxRows+2 {
			t.Errorf("%d objects are not ready", len(s.NotReady))
		}
		out, _ = w.ko("status")
		has(out, "NODE WITHOUT NETWORK", "node-2", node.says)
	}
	if _, err := w.ko("status", "-o", "yaml"); err == nil {
		t.Error("an unknown format is accepted")
	}
}

// TestStatusWaits waits for three changes, one after the other, each of which alone is not enough.
func TestStatusWaits(t *testing.T) {
	w := newWorld(t)
	w.setNode("node-1", corev1.ConditionTrue)
	type answer struct {
		out string
		err error
	}
	done := make(chan answer, 1)
	go func() {
		out, err := w.ko("status", "--wait")
		done <- answer{out, err}
	}()
	w.report(func(s *v1alpha1.OVNClusterStatus) {
		healthy(s)
		meta.SetStatusCondition(&s.Conditions, condition(v1alpha1.ConditionProgressing, metav1.ConditionTrue, "waiting for ovs-ovn"))
	})
	if _, err := w.ko("status", "--wait", "--timeout=10ms"); err == nil {
		t.Error("a wait with a limit ends without an error")
	}
	w.report(healthy)
	select {
	case a := <-done:
		t.Fatalf("did not wait for the node: %v\n%s", a.err, a.out)
	default:
	}
	w.setNode("node-1", corev1.ConditionFalse)
	if a := <-done; a.err != nil || !strings.Contains(a.out, "every component serves") {
		t.Errorf("%v\n%s", a.err, a.out)
	}
}

func TestReloadOrder(t *testing.T) {
	oc := &v1alpha1.OVNCluster{}
	for _, name := range []string{"ovn-central-nb", "ovn-central-sb", "ovn-central-northd", "ovs-ovn", "kube-ovn-controller", "kube-ovn-cni", "kube-ovn-pinger"} {
		oc.Status.Components = append(oc.Status.Components, v1alpha1.ComponentStatus{Name: name})
	}
	oc.Status.Northbound.Leader = "node-2"
	for wanted, want := range map[string]string{
		"":                            "ovs-ovn kube-ovn-cni ovn-central-nb ovn-central-sb ovn-central-northd kube-ovn-controller kube-ovn-pinger",
		"kube-ovn-controller ovs-ovn": "ovs-ovn kube-ovn-controller",
	} {
		if got, err := reloaded(oc, strings.Fields(wanted)); err != nil || strings.Join(got, " ") != want {
			t.Errorf("reload %s: %v, %v", wanted, got, err)
		}
	}
	if _, err := reloaded(oc, []string{"coredns"}); err == nil || !strings.Contains(err.Error(), "kube-ovn-cni") {
		t.Errorf("reload of another workload: %v", err)
	}
	pod := func(component, node string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{componentLabel: component}}, Spec: corev1.PodSpec{NodeName: node}}
	}
	if rank(oc, pod("ovn-central-nb", "node-1")) >= rank(oc, pod("ovn-central-nb", "node-2")) || rank(oc, pod("ovs-ovn", "node-2")) != 0 {
		t.Error("the leader of a database is not the last")
	}
}

func TestNodesAreCompleted(t *testing.T) {
	w := newWorld(t)
	w.setNode("node-1", corev1.ConditionFalse)
	for _, command := range []string{"vsctl", "appctl", "diagnose node"} {
		cmd := []string{"__complete", "--kubeconfig=" + w.kubeconfig}
		out, err := run(append(append(cmd, strings.Fields(command)...), "")...)
		if err != nil || !strings.HasPrefix(out, "node-1\n") {
			t.Errorf("%s: %v, %q", command, err, out)
		}
	}
}

// TestConnectionFlags checks flags of kubectl: without the right of an impersonated user the command fails.
func TestConnectionFlags(t *testing.T) {
	w := newWorld(t)
	w.report(healthy)
	_, err := w.ko("--as=nobody", "status")
	if err == nil || !strings.Contains(err.Error(), `User "nobody"`) {
		t.Errorf("as another user: %v", err)
	}
	if _, err := w.ko("--context=none", "status"); err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("with another context: %v", err)
	}
	if _, err := w.ko("--request-timeout=1ns", "status"); err == nil {
		t.Error("with a timeout that is over: no error")
	}
}

// TestStatusHasNoControlCharacters has a node whose message would clear the terminal.
func TestStatusHasNoControlCharacters(t *testing.T) {
	s := Status{NodesWithoutNetwork: []Trouble{{Kind: "Node", Name: "worker-1", Reason: "Lost", Message: "\x1b[2J\nworker-2\tfine\u009b"}}}
	var out bytes.Buffer
	if err := s.write(&out); err != nil {
		t.Fatal(err)
	}
	if want := "?[2J?worker-2?fine?\n"; !strings.HasSuffix(out.String(), want) {
		t.Errorf("got %q, want the end %q", out.String(), want)
	}
}
