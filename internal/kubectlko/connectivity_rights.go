// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"context"
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// rights returns the permissions that the test needs, so that it fails before it has created anything.
func (c *connectivity) rights() []authorizationv1.ResourceAttributes {
	var all []authorizationv1.ResourceAttributes
	for _, of := range []struct {
		namespace, group, resource, verbs string
	}{
		{c.namespace, corev1.GroupName, "pods", "list"},
		{corev1.NamespaceDefault, corev1.GroupName, "services", "get"},
		{"", corev1.GroupName, "namespaces", "create get delete"},
		{"", kubeovnv1.GroupVersion.Group, "vpcs", "create get delete"},
		{"", kubeovnv1.GroupVersion.Group, "subnets", "create get list delete"},
		{c.name, corev1.GroupName, "pods", "create list deletecollection"},
		{c.name, corev1.GroupName, "pods/exec", "create"},
		{c.name, corev1.GroupName, "services", "create"},
		{c.name, networkingv1.GroupName, "networkpolicies", "create delete"},
	} {
		resource, subresource, _ := strings.Cut(of.resource, "/")
		for _, verb := range strings.Fields(of.verbs) {
			all = append(all, authorizationv1.ResourceAttributes{Namespace: of.namespace, Verb: verb, Group: of.group, Resource: resource, Subresource: subresource})
		}
	}
	return all
}

// checkRights returns an error with all missing permissions.
func (c *connectivity) checkRights(ctx context.Context) error {
	var missing []string
	for _, right := range c.rights() {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &right}}
		review, err := c.pods.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		switch {
		case apierrors.IsForbidden(err): // the answers to the requests of the test show the rights
			return nil
		case err != nil:
			return fmt.Errorf("check your rights: %w", err)
		case !review.Status.Allowed:
			missing = append(missing, c.describeRight(right))
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("nothing was created, because you may not: %s", strings.Join(missing, ", "))
	}
	return nil
}

func (c *connectivity) describeRight(right authorizationv1.ResourceAttributes) string {
	text := right.Verb + " " + right.Resource
	if right.Group != corev1.GroupName {
		text += "." + right.Group
	}
	if right.Subresource != "" {
		text += "/" + right.Subresource
	}
	switch right.Namespace {
	case "":
		return text
	case c.name:
		return text + " in the namespaces of the test"
	}
	return text + " in namespace " + right.Namespace
}
