// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"fmt"
	"slices"
	"strings"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/validation"
)

// unbound returns a message about the namespaces in the spec that the subnet does not serve because its VPC does not list them. It returns
// "" if there are none.
func unbound(subnet *kubeovnv1.Subnet, vpc *kubeovnv1.Vpc) string {
	if vpc == nil || vpc.Name == kubeovnv1.DefaultVpc {
		return ""
	}
	var names []string
	for _, name := range subnet.Spec.Namespaces {
		if !slices.Contains(vpc.Spec.Namespaces, name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("namespaces: the subnet does not serve %s, which VPC %s does not list: add them to the VPC's namespaces, or remove them here",
		strings.Join(names, ", "), vpc.Name)
}

// setNamespacesBound sets the condition NamespacesBound of a subnet of a custom VPC, and removes it from other subnets.
func (r *Reconciler) setNamespacesBound(in inputs) {
	conditions := &in.subnet.Status.Conditions
	if lookup.VpcOf(in.subnet) == kubeovnv1.DefaultVpc {
		apimeta.RemoveStatusCondition(conditions, kubeovnv1.ConditionNamespacesBound)
		return
	}
	before := slices.Clone(*conditions)
	c := metav1.Condition{
		Type: kubeovnv1.ConditionNamespacesBound, Status: metav1.ConditionTrue, Reason: kubeovnv1.ReasonAllInForce,
		Message: "the subnet serves every namespace that it names",
	}
	if message := unbound(in.subnet, in.vpc); message != "" {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, validation.ReasonNamespaceTaken, message
	}
	k8s.SetConditions(conditions, in.subnet.Generation, c)
	k8s.WarnAnew(r.Recorder, in.subnet, before, *conditions, c.Type)
}

// boundOtherwise reports whether a subnet's condition NamespacesBound is stale with respect to its VPC.
func boundOtherwise(subnet *kubeovnv1.Subnet, vpc *kubeovnv1.Vpc) bool {
	c := apimeta.FindStatusCondition(subnet.Status.Conditions, kubeovnv1.ConditionNamespacesBound)
	message := unbound(subnet, vpc)
	return c == nil || (message == "") != (c.Status == metav1.ConditionTrue) || message != "" && message != c.Message
}
