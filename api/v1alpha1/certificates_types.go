// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Certificates says who makes the authorities of the TLS between components and databases. Certificates of components and nodes are
// the operator's to sign in either case.
type Certificates struct {
	// issuerRef names the cert-manager issuer that makes an authority for each role, as an intermediate of its own: it must grant
	// certificates with isCA. By default the operator makes them. It can be set, changed and taken away at any time: authorities are
	// replaced in steps, and the old ones serve until the new ones are there.
	// +optional
	IssuerRef *IssuerReference `json:"issuerRef,omitempty"`

	// authorityDuration is what the issuer is asked for, at least 24h. cert-manager renews after two thirds of what it grants.
	// +optional
	// +kubebuilder:default="8760h"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('24h')",message="authorityDuration is 24h or longer"
	AuthorityDuration *metav1.Duration `json:"authorityDuration,omitempty"`
}

// IssuerReference names an issuer of cert-manager's, or an external one by its group and kind.
// +kubebuilder:validation:XValidation:rule="self.group != 'cert-manager.io' || self.kind in ['Issuer', 'ClusterIssuer']",message="kind must be Issuer or ClusterIssuer in the group cert-manager.io"
type IssuerReference struct {
	// name of the issuer. One that has a namespace is in that of the operator.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// +optional
	// +kubebuilder:default=Issuer
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind,omitempty"`
	// +optional
	// +kubebuilder:default=cert-manager.io
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Group string `json:"group,omitempty"`
}
