// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"fmt"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// large is a cluster with 1,000 NetworkPolicies in the namespace of the destination, of which the last allows the connection, and with 500 nodes and 1,000
// Subnets: the largest snapshot that a reader makes of a cluster with 20,000 ports.
func large() *cluster {
	c := newCluster()
	c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
	c.run("bank", "b", "n2", kubeovnv1.DefaultSubnet)
	for i := range 999 {
		np := c.isolate("bank", fmt.Sprintf("p%03d", i), networkingv1.PolicyTypeIngress)
		ingress(np, networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprint("client-", i)}}}, numbered(80), numbered(443))
		np.Spec.PodSelector.MatchLabels = map[string]string{"app": []string{"b", "other"}[i%2]}
	}
	ingress(c.isolate("bank", "z", networkingv1.PolicyTypeIngress), fromNamespace("shop"))
	for i := range 1000 {
		c.newSubnet(fmt.Sprint("s", i), fmt.Sprintf("10.%d.%d.0/24,fd00:10:%x::/112", 32+i/256, i%256, 0x1000+i), kubeovnv1.SubnetSpec{})
	}
	return c
}

func TestALargeClusterHasAnAnswer(t *testing.T) {
	c := large()
	q := tcp(podEnd("shop", "a"), podEnd("bank", "b"), 80)
	if a := Run(&c.Snapshot, q); a.Verdict != Delivered {
		t.Errorf("with a policy that allows:\n%s", a.text())
	}
	c.Policies = c.Policies[:999]
	if a := Run(&c.Snapshot, q); a.Verdict != Dropped || a.Traces[0].DecidedBy.Kind != "NetworkPolicy" {
		t.Errorf("without it:\n%s", a.text())
	}
}

func BenchmarkLargeCluster(b *testing.B) {
	c := large()
	b.ReportAllocs()
	for b.Loop() {
		if a := Run(&c.Snapshot, tcp(podEnd("shop", "a"), podEnd("bank", "b"), 80)); a.Verdict != Delivered {
			b.Fatal(a.text())
		}
	}
}
