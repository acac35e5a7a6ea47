// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package controllertest

import (
	"context"
	"errors"
	"fmt"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/controllers/operator/render"
)

// Namespace is the controller's namespace.
const Namespace = "kube-system"

// asController returns a config with the controller's own service account, and exactly the permissions that the operator grants it.
func asController(ctx context.Context, admin *rest.Config) (*rest.Config, error) {
	c, err := client.New(admin, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	for _, o := range render.AccessObjects(render.Config{Namespace: Namespace}) {
		if o.GetName() != render.ControllerName && o.GetName() != "kiln:"+render.ControllerName {
			continue
		}
		if err := c.Create(ctx, o.(client.Object)); err != nil {
			return nil, fmt.Errorf("create %T %s: %w", o, o.GetName(), err)
		}
	}
	account := rest.CopyConfig(admin)
	account.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + Namespace + ":" + render.ControllerName,
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + Namespace, "system:authenticated"},
	}
	return account, granted(ctx, account)
}

// granted waits until the API server's authorizer, which watches roles, allows the account its permissions.
func granted(ctx context.Context, account *rest.Config) error {
	c, err := client.New(account, client.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); <-tick.C {
		known := true
		for _, right := range []authorizationv1.ResourceAttributes{
			{Verb: "list", Resource: "pods"}, {Verb: "create", Resource: "leases", Group: "coordination.k8s.io", Namespace: Namespace},
		} {
			review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &right}}
			if err := c.Create(ctx, review); err != nil {
				return fmt.Errorf("review the rights of the controller: %w", err)
			}
			known = known && review.Status.Allowed
		}
		if known {
			return nil
		}
	}
	return errors.New("the API server does not load the rights of the controller")
}
