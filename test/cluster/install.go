// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"os/exec"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/testing/prepared"
)

// Scheme holds the Kubernetes types and Kiln's own.
func Scheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, kubeovnv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(s); err != nil {
			return nil, fmt.Errorf("register types: %w", err)
		}
	}
	return s, nil
}

// Objects returns a client for Kiln's own kinds and Kubernetes' kinds.
func (c *Cluster) Objects() (client.WithWatch, error) {
	s, err := Scheme()
	if err != nil {
		return nil, err
	}
	objects, err := client.NewWithWatch(c.Config, client.Options{Scheme: s})
	if err != nil {
		return nil, fmt.Errorf("make a client of Kiln's kinds: %w", err)
	}
	return objects, nil
}

// Install installs the operator by its manifests and applies the OVNCluster. It returns when that is Available, and reports messages until then.
func (c *Cluster) Install(ctx context.Context, kubeconfig, manifests string, spec v1alpha1.OVNClusterSpec, report func(string)) error {
	if err := ApplyManifests(ctx, kubeconfig, manifests); err != nil {
		return err
	}
	if err := c.ApplyOVNCluster(ctx, spec); err != nil {
		return err
	}
	return c.WaitAvailable(ctx, report)
}

// ApplyManifests runs kubectl apply -k, as a user would.
func ApplyManifests(ctx context.Context, kubeconfig, dir string) error {
	return apply(ctx, kubeconfig, "-k", dir)
}

// ApplyFile is ApplyManifests for one file.
func ApplyFile(ctx context.Context, kubeconfig, file string) error {
	return apply(ctx, kubeconfig, "-f", file)
}

func apply(ctx context.Context, kubeconfig, flag, path string) error {
	kubectl, err := prepared.File("bin/kubectl")
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, kubectl, "--kubeconfig", kubeconfig, "apply", "--server-side", "--force-conflicts", "--request-timeout=30s", flag, path)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl apply %s %s: %w\n%s", flag, path, err, out)
	}
	return nil
}

// ApplyOVNCluster creates the OVNCluster or updates the spec of the existing one.
func (c *Cluster) ApplyOVNCluster(ctx context.Context, spec v1alpha1.OVNClusterSpec) error {
	objects, err := c.Objects()
	if err != nil {
		return err
	}
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error { // conflict with the operator's status writes
		want := &v1alpha1.OVNCluster{
			TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "OVNCluster"},
			ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.OVNClusterName},
		}
		if err := client.IgnoreNotFound(objects.Get(ctx, client.ObjectKeyFromObject(want), want)); err != nil {
			return err
		}
		want.Spec = spec
		if want.ResourceVersion == "" {
			return objects.Create(ctx, want)
		}
		return objects.Update(ctx, want)
	})
	if err != nil {
		return fmt.Errorf("apply OVNCluster: %w", err)
	}
	return nil
}

// WaitAvailable watches the OVNCluster until its present generation is Available, and reports each message until then.
func (c *Cluster) WaitAvailable(ctx context.Context, progress func(string)) error {
	objects, err := c.Objects()
	if err != nil {
		return err
	}
	last := ""
	for ctx.Err() == nil {
		w, err := objects.Watch(ctx, &v1alpha1.OVNClusterList{})
		if err != nil {
			return fmt.Errorf("watch OVNCluster: %w", err)
		}
		for event := range w.ResultChan() {
			oc, ok := event.Object.(*v1alpha1.OVNCluster)
			if !ok {
				continue
			}
			if msg := progressOf(oc); msg != "" && msg != last {
				last = msg
				progress(msg)
			}
			if meta.IsStatusConditionTrue(oc.Status.Conditions, v1alpha1.ConditionAvailable) && oc.Status.ObservedGeneration == oc.Generation {
				w.Stop()
				return nil
			}
		}
	}
	return fmt.Errorf("OVNCluster is not Available (%s): %w", last, ctx.Err())
}

func progressOf(oc *v1alpha1.OVNCluster) string {
	for _, t := range []string{v1alpha1.ConditionDegraded, v1alpha1.ConditionProgressing} {
		if cond := meta.FindStatusCondition(oc.Status.Conditions, t); cond != nil && cond.Status == metav1.ConditionTrue {
			return fmt.Sprintf("%s: %s: %s", t, cond.Reason, cond.Message)
		}
	}
	return ""
}
