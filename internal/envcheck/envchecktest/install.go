// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package envchecktest makes the API server of a test look like a cluster with Kube-OVN. Its definitions and objects are written for these tests.
package envchecktest

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/testing/eventually"
)

//go:embed testdata
var files embed.FS

// Files of objects.
const (
	// Objects are network resources, nodes, pods and namespaces.
	Objects = "testdata/cluster.yaml"
	// Workloads are those of Kube-OVN, and kube-proxy.
	Workloads = "testdata/workloads.yaml"
)

// kubeOVN is the field manager by which Kube-OVN's definitions and objects are created.
const kubeOVN = client.FieldOwner("helm")

// withoutStatus are the kinds whose definition in Kube-OVN has no subresource status.
var withoutStatus = []string{"IP", "Vip"}

// Define creates definitions of the kinds of Objects that accept every field, as another project would.
func Define(t *testing.T, c client.Client) {
	t.Helper()
	used := map[string]bool{}
	for _, o := range readFile(t, Objects) {
		used[o.GetKind()] = true
	}
	for _, k := range kubeovnv1.Kinds {
		if !used[k.Kind] {
			continue
		}
		version := map[string]any{
			"name": "v1", "served": true, "storage": true,
			"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": map[string]any{
				"spec":   map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true},
				"status": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true},
			}}},
			"additionalPrinterColumns": []any{map[string]any{"name": "Foreign", "type": "string", "jsonPath": ".metadata.name"}},
		}
		if !slices.Contains(withoutStatus, k.Kind) {
			version["subresources"] = map[string]any{"status": map[string]any{}}
		}
		o := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
			"metadata": map[string]any{"name": k.Resource + ".kubeovn.io"},
			"spec": map[string]any{
				"group": "kubeovn.io", "scope": "Cluster", "versions": []any{version},
				"names": map[string]any{"kind": k.Kind, "listKind": k.Kind + "List", "plural": k.Resource},
			},
		}}
		if err := c.Create(t.Context(), o, kubeOVN); err != nil {
			t.Fatal(err)
		}
	}
}

// Create creates the objects of a file, with their status.
func Create(t *testing.T, c client.Client, file string) {
	t.Helper()
	for _, o := range readFile(t, file) {
		status := o.Object["status"]
		eventually.Wait{}.Empty(t, func() string { return createOne(t.Context(), c, o.DeepCopy(), status) })
	}
}

// createOne returns why an object cannot be created yet: its definition may not be served yet.
func createOne(ctx context.Context, c client.Client, o *unstructured.Unstructured, status any) string {
	err := c.Create(ctx, o, kubeOVN)
	if apierrors.IsAlreadyExists(err) { // a repetition
		err = c.Get(ctx, client.ObjectKeyFromObject(o), o)
	}
	if err != nil {
		return err.Error()
	}
	if status == nil || slices.Contains(withoutStatus, o.GetKind()) {
		return ""
	}
	o.Object["status"] = status
	if err := c.Status().Update(ctx, o, kubeOVN); err != nil {
		return fmt.Sprintf("status of %s %s: %v", o.GetKind(), o.GetName(), err)
	}
	return ""
}

// Replace applies the definitions of Kiln as docs/operations/migrate.md says: on the server, and by force. crds is the path of config/crd/bases.
func Replace(t *testing.T, c client.Client, crds string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(crds, "*.yaml"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no definitions in %s: %v", crds, err)
	}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range decode(t, content) {
			if err := c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(o), client.FieldOwner("kubectl"), client.ForceOwnership); err != nil {
				t.Fatalf("apply %s: %v", path, err)
			}
		}
	}
}

func readFile(t *testing.T, file string) []*unstructured.Unstructured {
	t.Helper()
	content, err := files.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, content)
}

func decode(t *testing.T, content []byte) (objects []*unstructured.Unstructured) {
	t.Helper()
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
	for {
		o := &unstructured.Unstructured{}
		switch err := decoder.Decode(&o.Object); {
		case errors.Is(err, io.EOF):
			return objects
		case err != nil:
			t.Fatal(err)
		case len(o.Object) > 0:
			objects = append(objects, o)
		}
	}
}

// OVNCluster returns an empty object with the name of every OVNCluster.
func OVNCluster() *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("OVNCluster"))
	o.SetName(v1alpha1.OVNClusterName)
	return o
}
