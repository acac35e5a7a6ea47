// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Certificates defines the origin of the CAs for TLS between components and databases. The operator signs the certificates of components
// and nodes in either case.
type Certificates struct {
	// issuerRef names the cert-manager issuer that issues an intermediate CA for each role. It must issue certificates with isCA. By
	// default the operator creates the CAs itself. The field can be set, changed and removed at any time: CAs are rotated in steps, and the
	// previous CAs remain in use until the new CAs are ready.
	// +optional
	IssuerRef *IssuerReference `json:"issuerRef,omitempty"`

	// authorityDuration is the lifetime of a CA that the operator requests from the issuer, at least 24h. cert-manager renews after two
	// thirds of the lifetime that the issuer grants.
	// +optional
	// +kubebuilder:default="8760h"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('24h')",message="authorityDuration is 24h or longer"
	AuthorityDuration *metav1.Duration `json:"authorityDuration,omitempty"`
}

// IssuerReference names an issuer of cert-manager, or an external issuer by its group and kind.
// +kubebuilder:validation:XValidation:rule="self.group != 'cert-manager.io' || self.kind in ['Issuer', 'ClusterIssuer']",message="kind must be Issuer or ClusterIssuer in the group cert-manager.io",messageExpression=`'kind must be Issuer or ClusterIssuer in the group cert-manager.io, and not ' + self.kind`
type IssuerReference struct {
	// name of the issuer. A namespaced issuer must be in the namespace of the operator.
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
