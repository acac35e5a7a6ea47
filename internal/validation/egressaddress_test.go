// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

func TestEgressAddress(t *testing.T) {
	wrong := metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}}
	right := metav1.LabelSelector{MatchLabels: map[string]string{"team": "shop"}}
	for name, c := range map[string]struct {
		spec    kubeovnv1.EgressAddressSpec
		problem string
		want    string
	}{
		"all pods of all namespaces": {spec: kubeovnv1.EgressAddressSpec{OvnEip: "out"}, want: "|||[]"},
		"both families on nodes": {
			spec: kubeovnv1.EgressAddressSpec{NamespaceSelector: right, PodSelector: &right, NodeSelector: &right, Addresses: []string{"192.0.2.1", "2001:DB8::1"}},
			want: "team=shop|team=shop|team=shop|[192.0.2.1 2001:db8::1]",
		},
		"a wrong selector of namespaces": {spec: kubeovnv1.EgressAddressSpec{NamespaceSelector: wrong}, problem: "namespaceSelector: "},
		"a wrong selector of pods":       {spec: kubeovnv1.EgressAddressSpec{PodSelector: &wrong}, problem: "podSelector: "},
		"a wrong selector of nodes":      {spec: kubeovnv1.EgressAddressSpec{NodeSelector: &wrong}, problem: "nodeSelector: "},
		"a wrong address":                {spec: kubeovnv1.EgressAddressSpec{Addresses: []string{"192.0.2"}}, problem: "addresses: "},
	} {
		t.Run(name, func(t *testing.T) {
			got, problem := EgressAddress(&c.spec)
			switch {
			case c.problem != "":
				if problem == nil || !strings.HasPrefix(problem.Message, c.problem) {
					t.Errorf("the problem is %+v", problem)
				}
			case problem != nil:
				t.Errorf("the problem is %+v", problem)
			default:
				if text := fmt.Sprintf("%s|%s|%s|%v", got.Namespaces, got.Pods, got.Nodes, got.Addresses); text != c.want {
					t.Errorf("it is %s, want %s", text, c.want)
				}
				if c.spec.PodSelector == nil && !got.Pods.Matches(labels.Set{"any": "pod"}) {
					t.Error("a selector that is missing does not select all pods")
				}
			}
		})
	}
}
