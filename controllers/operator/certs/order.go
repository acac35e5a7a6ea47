// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package certs

import (
	"cmp"
	"strconv"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

// Kinds of cert-manager (its API reference, cert-manager.io/v1). The operator uses them without typed clients, so
// cert-manager is optional.
var (
	CertificateKind = schema.GroupVersionKind{Group: "cert-manager.io", Version: "v1", Kind: "Certificate"}
	RequestKind     = schema.GroupVersionKind{Group: "cert-manager.io", Version: "v1", Kind: "CertificateRequest"}
)

// CertificateDefinition is the name of the CustomResourceDefinition of Certificates.
const CertificateDefinition = "certificates.cert-manager.io"

// Annotations of a Secret that name the issuer of its certificate.
const (
	IssuerNameAnnotation  = "cert-manager.io/issuer-name"
	IssuerKindAnnotation  = "cert-manager.io/issuer-kind"
	IssuerGroupAnnotation = "cert-manager.io/issuer-group"
)

// revisionAnnotation has the revision of a Certificate for which a CertificateRequest was made.
const revisionAnnotation = "cert-manager.io/certificate-revision"

// Order returns the Certificate of a CA with these labels, for issuerRef of the spec. Each renewal creates a new key. The Secret gets the same
// labels.
func Order(namespace, name string, labels map[string]string, spec v1alpha1.Certificates) *unstructured.Unstructured {
	template := map[string]any{}
	for key, value := range labels {
		template[key] = value
	}
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetGroupVersionKind(CertificateKind)
	u.SetNamespace(namespace)
	u.SetName(IssuedPrefix + name)
	u.SetLabels(labels)
	u.Object["spec"] = map[string]any{
		"commonName": "kiln-" + name,
		"isCA":       true,
		"usages":     []any{"cert sign", "crl sign", "digital signature"},
		"secretName": u.GetName(),
		"duration":   spec.AuthorityDuration.Duration.String(),
		"privateKey": map[string]any{
			"algorithm": "ECDSA", "size": int64(256), "encoding": "PKCS8", "rotationPolicy": "Always",
		},
		"issuerRef": map[string]any{
			"name": spec.IssuerRef.Name, "kind": spec.IssuerRef.Kind, "group": spec.IssuerRef.Group,
		},
		"secretTemplate":       map[string]any{"labels": template},
		"revisionHistoryLimit": int64(1),
	}
	return u
}

// Refusal returns the message of a Certificate's newest request to its issuer if the request was not granted, or an empty
// string.
func Refusal(certificate *unstructured.Unstructured, requests []unstructured.Unstructured) string {
	if certificate == nil {
		return ""
	}
	var newest *unstructured.Unstructured
	for i := range requests {
		request := &requests[i]
		if !metav1.IsControlledBy(request, certificate) || !equality.Semantic.DeepEqual(issuerOf(request), issuerOf(certificate)) {
			continue
		}
		if newest == nil || compareRequests(request, newest) > 0 {
			newest = request
		}
	}
	status, message := Readiness(newest)
	if status != string(metav1.ConditionFalse) {
		return ""
	}
	return message
}

// compareRequests orders requests of a Certificate by age. Of requests of the same second, the one with the higher revision is newer.
func compareRequests(a, b *unstructured.Unstructured) int {
	created := a.GetCreationTimestamp()
	return cmp.Or(created.Compare(b.GetCreationTimestamp().Time), cmp.Compare(revisionOf(a), revisionOf(b)), cmp.Compare(a.GetName(), b.GetName()))
}

// revisionOf returns the revision of a request; 0 if it has none.
func revisionOf(request *unstructured.Unstructured) int {
	n, err := strconv.Atoi(request.GetAnnotations()[revisionAnnotation])
	if err != nil {
		return 0
	}
	return n
}

func issuerOf(u *unstructured.Unstructured) map[string]any {
	ref, _, _ := unstructured.NestedMap(u.Object, "spec", "issuerRef")
	return ref
}

// Readiness returns the status and the message of the condition Ready.
func Readiness(u *unstructured.Unstructured) (status, message string) {
	const silence = "cert-manager has not said anything of it: see that it runs"
	if u == nil {
		return "", silence
	}
	conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, c := range conditions {
		if condition, is := c.(map[string]any); is && condition["type"] == "Ready" {
			status, _ = condition["status"].(string)
			message, _ = condition["message"].(string)
			return status, message
		}
	}
	return "", silence
}
