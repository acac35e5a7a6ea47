// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package egressaddress_test

import (
	"fmt"
	"maps"
	"testing"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/egressaddress"
	"github.com/kiln-net/kiln/internal/gateway"
)

// labelNode adds a label to a node.
func (w *world) labelNode(name, key, value string) {
	w.Helper()
	n := w.nodes[name]
	w.Get(n)
	w.Change(n, func() {
		n.Labels = maps.Clone(n.Labels)
		n.Labels[key] = value
	})
}

// announces waits until the condition Announced has this status and message.
func (w *world) announces(e *kubeovnv1.EgressAddress, status metav1.ConditionStatus, reason, message string) {
	w.Helper()
	w.Eventually(func() string {
		w.Get(e)
		c := apimeta.FindStatusCondition(e.Status.Conditions, kubeovnv1.ConditionAnnounced)
		if c == nil || c.Status != status || c.Reason != reason || c.Message != message {
			return fmt.Sprintf("the condition of EgressAddress %s is %+v, want %s, %s: %s", e.Name, c, status, reason, message)
		}
		return ""
	})
}

func TestTheConditionNamesTheNodeThatAnnounces(t *testing.T) {
	w := newWorld(t)
	out := onNodes("out", "a", "198.51.100.9", "2001:db8:9::9")
	annotate := func(value string) {
		t.Helper()
		w.Get(out)
		w.Change(out, func() { out.Annotations = map[string]string{kubeovnv1.AnnotationBGP.Key(): value} })
	}
	w.Create(out)
	w.Ready(out)
	if apimeta.FindStatusCondition(out.Status.Conditions, kubeovnv1.ConditionAnnounced) != nil {
		t.Errorf("without an annotation the conditions are %+v", out.Status.Conditions)
	}
	annotate("yes")
	w.announces(out, metav1.ConditionFalse, egressaddress.ReasonInvalidValue, "annotation ovn.kubernetes.io/bgp must be true, cluster, local or false")
	annotate("true")
	w.announces(out, metav1.ConditionFalse, egressaddress.ReasonNoSpeaker, "spec.speaker of the OVNCluster is not set")
	w.speakers.Set(&v1alpha1.OVNClusterSpec{Speaker: &v1alpha1.Speaker{NodeSelector: map[string]string{"bgp": "yes"}}})
	first, second := out.Status.Node, out.Status.Standby
	w.announces(out, metav1.ConditionFalse, egressaddress.ReasonNoSpeaker, first+" has the addresses, and no speaker: label the nodes of nodeSelector with bgp=yes")
	w.labelNode(first, "bgp", "yes")
	by := func(node string) string {
		return fmt.Sprintf("kube-ovn-speaker on %s announces 198.51.100.9,2001:db8:9::9", node)
	}
	w.announces(out, metav1.ConditionTrue, egressaddress.ReasonBySpeaker, by(first)+"; the standby "+second+" has no speaker: label it with bgp=yes")
	w.labelNode(second, "bgp", "yes")
	w.announces(out, metav1.ConditionTrue, egressaddress.ReasonBySpeaker, by(first))

	since := out.Status.NodeSince
	w.leases.Set(second, gateway.Alive)
	w.leases.Set(first, gateway.Stopped)
	w.announces(out, metav1.ConditionTrue, egressaddress.ReasonBySpeaker, by(second))
	if out.Status.NodeSince == nil || since == nil || !since.Before(out.Status.NodeSince) {
		t.Errorf("%s has the addresses since %v, %s since %v", first, since, second, out.Status.NodeSince)
	}

	w.speakers.Set(&v1alpha1.OVNClusterSpec{})
	w.announces(out, metav1.ConditionFalse, egressaddress.ReasonNoSpeaker, "spec.speaker of the OVNCluster is not set")
	annotate("false")
	w.Eventually(func() string {
		if w.Get(out); apimeta.FindStatusCondition(out.Status.Conditions, kubeovnv1.ConditionAnnounced) != nil {
			return fmt.Sprintf("the conditions are %+v", out.Status.Conditions)
		}
		return ""
	})
	w.Rests("egressaddress")

	eip := byEip("eip", "a", "missing")
	eip.Annotations = map[string]string{kubeovnv1.AnnotationBGP.Key(): "true"}
	w.Create(eip)
	w.announces(eip, metav1.ConditionFalse, egressaddress.ReasonOfEip, "addresses of OvnEips are not announced: routers reach them in the external subnet; remove the annotation")

	lonely := onNodes("lonely", "a", "198.51.100.10")
	lonely.Annotations, lonely.Spec.NodeSelector.MatchLabels = eip.Annotations, map[string]string{"no": "node"}
	w.Create(lonely)
	w.announces(lonely, metav1.ConditionFalse, egressaddress.ReasonNoNode, "no node has the addresses")
}
