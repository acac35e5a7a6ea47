// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package certs

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// The cache lists requests in random order.
func TestTheRefusalIsOfTheNewestRequest(t *testing.T) {
	certificate := &unstructured.Unstructured{Object: map[string]any{}}
	certificate.SetGroupVersionKind(CertificateKind)
	certificate.SetName("ca")
	certificate.SetUID("1")
	request := func(name, revision string, created int64) unstructured.Unstructured {
		u := unstructured.Unstructured{Object: map[string]any{"status": map[string]any{
			"conditions": []any{map[string]any{"type": "Ready", "status": "False", "message": "refused: " + name}},
		}}}
		u.SetGroupVersionKind(RequestKind)
		u.SetName(name)
		u.SetCreationTimestamp(metav1.Unix(created, 0))
		u.SetAnnotations(map[string]string{revisionAnnotation: revision})
		u.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(certificate, CertificateKind)})
		return u
	}
	for name, c := range map[string]struct {
		requests []unstructured.Unstructured
		want     string
	}{
		"by time":                       {[]unstructured.Unstructured{request("a", "2", 1), request("b", "1", 2)}, "refused: b"},
		"by revision in one second":     {[]unstructured.Unstructured{request("ca-10", "10", 1), request("ca-9", "9", 1)}, "refused: ca-10"},
		"by name without any revisions": {[]unstructured.Unstructured{request("a", "", 1), request("b", "", 1)}, "refused: b"},
	} {
		for range 2 {
			if got := Refusal(certificate, c.requests); got != c.want {
				t.Errorf("%s: %q, want %q", name, got, c.want)
			}
			slices.Reverse(c.requests)
		}
	}
}
