// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package render

import (
	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
)

// RemovalPolicy is the name of the policy that the operator deletes first when the OVNCluster is deleted.
const RemovalPolicy = "kiln-network-removal"

// networkRemoval denies the deletion of the objects that every pod needs: the OVNCluster, the Vpc and the Subnets that it creates, and the definitions of all kinds,
// whose deletion deletes the objects without another request. config/admission guards the OVNCluster before the operator runs; OLM does not install it.
func networkRemoval() policy {
	group := kubeovnv1.GroupVersion.Group
	return policy{
		name: RemovalPolicy, app: ControllerName, group: group,
		resources:  []string{"ovnclusters", "vpcs", "subnets"},
		others:     []resources{{"apiextensions.k8s.io", []string{"customresourcedefinitions"}}},
		operations: []admissionv1.OperationType{admissionv1.Delete},
		when: "request.resource.resource == 'ovnclusters' || " +
			"request.resource.resource == 'vpcs' && oldObject.metadata.name == '" + kubeovnv1.DefaultVpc + "' || " +
			"request.resource.resource == 'subnets' && oldObject.metadata.name in " + celList([]string{kubeovnv1.DefaultSubnet, kubeovnv1.JoinSubnet}) + " || " +
			"request.resource.resource == 'customresourcedefinitions' && oldObject.metadata.name.endsWith('." + group + "')",
		validations: []admissionv1.Validation{{
			Expression: "has(oldObject.metadata.deletionTimestamp) || oldObject.metadata.?annotations[?'" + v1alpha1.AnnotationAllowRemoval + "'].orValue('') == 'true'",
			MessageExpression: "'pods of the whole cluster need this object, and its deletion cannot be undone. To delete it nevertheless, first run: kubectl annotate ' + " +
				"request.resource.resource + ' ' + oldObject.metadata.name + ' " + v1alpha1.AnnotationAllowRemoval + "=true. To remove Kiln, delete the OVNCluster first (docs/operations/install.md)'",
			Message: "pods of the whole cluster need this object: it needs the annotation " + v1alpha1.AnnotationAllowRemoval + "=true first",
			Reason:  new(metav1.StatusReasonForbidden),
		}},
	}
}
