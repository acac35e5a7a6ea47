// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// TrafficMirror returns the selectors of namespaces and pods. The API server checks the other fields.
func TrafficMirror(spec *kubeovnv1.TrafficMirrorSpec) (namespaces, pods labels.Selector, problem *Problem) {
	parse := func(field string, s *metav1.LabelSelector) labels.Selector {
		if s == nil || len(s.MatchLabels)+len(s.MatchExpressions) == 0 {
			return labels.Everything()
		}
		selector, err := metav1.LabelSelectorAsSelector(s)
		if err != nil && problem == nil {
			problem = Invalid("%s: %v", field, err)
		}
		return selector
	}
	namespaces, pods = parse("namespaceSelector", spec.NamespaceSelector), parse("podSelector", spec.PodSelector)
	return namespaces, pods, problem
}
