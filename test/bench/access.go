// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kiln-net/kiln/controllers/operator/render"
)

// account describes the user of the system under test.
func (o options) account() string {
	if o.clusterAdmin {
		return "a cluster administrator"
	}
	return render.ControllerName
}

// grantAccess creates the ServiceAccounts, roles and policies that the operator renders, and a client and a kubeconfig for the system under
// test.
func (w *world) grantAccess(ctx context.Context, o options) error {
	if o.clusterAdmin {
		w.writer = w.clients
		return w.writeKubeconfig(w.api.KubeConfig)
	}
	namespace, _, _ := strings.Cut(o.lease, "/")
	config := render.Config{Namespace: namespace}
	objects := render.AccessObjects(config)
	if o.admission {
		objects = append(objects, render.Policies(config)...)
	}
	admin, err := w.objects()
	if err != nil {
		return err
	}
	for _, object := range objects {
		if err := admin.Create(ctx, object); err != nil {
			return fmt.Errorf("create %T %s: %w", object, object.GetName(), err)
		}
	}
	kubeconfig, client, err := w.api.AccountConfig(ctx, namespace, render.ControllerName)
	if err != nil {
		return fmt.Errorf("authenticate the system under test: %w", err)
	}
	if w.writer, err = clientsOf(client); err != nil {
		return err
	}
	if err := w.writeKubeconfig(kubeconfig); err != nil {
		return err
	}
	return w.awaitAccess(ctx, namespace, o.admission)
}

func (w *world) writeKubeconfig(content []byte) error {
	if err := os.WriteFile(w.kubeconfig(), content, 0o600); err != nil {
		return fmt.Errorf("write the kubeconfig: %w", err)
	}
	return nil
}

// awaitAccess waits until the API server has loaded roles and policies. It tries two writes: the ClusterRole allows one, the Role the other,
// and policies deny both. The API server loads policies in the order of their creation, and the policies of pods are older than these two.
func (w *world) awaitAccess(ctx context.Context, namespace string, policies bool) error {
	dryRun := []string{metav1.DryRunAll}
	for _, write := range []func() error{
		func() error {
			patch := []byte(`{"metadata":{"labels":{"a":"b"}}}`)
			_, err := w.writer.CoreV1().Namespaces().Patch(ctx, namespace, types.MergePatchType, patch, metav1.PatchOptions{DryRun: dryRun})
			return err
		},
		func() error {
			lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "other"}}
			_, err := w.writer.CoordinationV1().Leases(namespace).Create(ctx, lease, metav1.CreateOptions{DryRun: dryRun})
			return err
		},
	} {
		err := within(time.Minute, func() error {
			err := write()
			denied := apierrors.IsForbidden(err) && strings.Contains(err.Error(), "ValidatingAdmissionPolicy")
			switch {
			case denied == policies && (denied || err == nil):
				return nil
			case err == nil:
				return fmt.Errorf("no policy denies a write that %s must not make", render.ControllerName)
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("wait for roles and policies: %w", err)
		}
	}
	return nil
}
