// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"context"
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// right is a permission that a run needs: verbs, separated by blanks, for a resource with its subresource. namespace is empty for objects without one.
type right struct{ namespace, group, resource, verbs string }

// podRights returns the permissions that each run needs.
func (r *podRun) podRights() []right {
	all := []right{
		{r.namespace, corev1.GroupName, "pods", "list"},
		{"", corev1.GroupName, "namespaces", "create get delete"},
		{r.name, corev1.GroupName, "pods", "create list deletecollection"},
		{r.name, corev1.GroupName, "pods/exec", "create"},
	}
	if r.in != "" {
		all = append(all, right{r.in, corev1.GroupName, "pods", "create get list delete"}, right{r.in, corev1.GroupName, "pods/exec", "create"})
	}
	return all
}

// checkRights returns an error with all missing permissions, before anything is created.
func (r *podRun) checkRights(ctx context.Context, rights []right) error {
	missing, err := r.missingRights(ctx, rights)
	if err != nil || len(missing) == 0 {
		return err
	}
	texts := make([]string, len(missing))
	for i := range missing {
		if texts[i] = describeRight(missing[i]); missing[i].Namespace == r.name {
			missing[i].Namespace = ""
			texts[i] = describeRight(missing[i]) + " in the namespaces of the test"
		}
	}
	return fmt.Errorf("nothing was created, because you may not: %s", strings.Join(texts, ", "))
}

// missingRights returns the permissions that the user lacks. It returns none if the user may not ask: the answers to later requests show them.
func (p *plugin) missingRights(ctx context.Context, rights []right) ([]authorizationv1.ResourceAttributes, error) {
	var missing []authorizationv1.ResourceAttributes
	for _, of := range rights {
		resource, subresource, _ := strings.Cut(of.resource, "/")
		for _, verb := range strings.Fields(of.verbs) {
			attributes := authorizationv1.ResourceAttributes{Namespace: of.namespace, Verb: verb, Group: of.group, Resource: resource, Subresource: subresource}
			review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &attributes}}
			review, err := p.pods.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
			switch {
			case apierrors.IsForbidden(err):
				return nil, nil
			case err != nil:
				return nil, fmt.Errorf("check your rights: %w", err)
			case !review.Status.Allowed:
				missing = append(missing, attributes)
			}
		}
	}
	return missing, nil
}

func describeRight(right authorizationv1.ResourceAttributes) string {
	text := right.Verb + " " + right.Resource
	if right.Group != corev1.GroupName {
		text += "." + right.Group
	}
	if right.Subresource != "" {
		text += "/" + right.Subresource
	}
	if right.Namespace != "" {
		text += " in namespace " + right.Namespace
	}
	return text
}
