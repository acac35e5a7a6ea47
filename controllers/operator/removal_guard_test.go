// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/workload"
)

// TestTheNetworkOfAllPodsIsDeletedWithTheAnnotationOnly tries to delete the default Vpc and Subnets and the definitions as an administrator.
func TestTheNetworkOfAllPodsIsDeletedWithTheAnnotationOnly(t *testing.T) {
	w := newTenancy(t, render.Config{Namespace: testNamespace})
	const allow = `{"metadata":{"annotations":{"` + v1alpha1.AnnotationAllowRemoval + `":"true"}}}`
	object := func(kind, name string, spec map[string]any) *unstructured.Unstructured {
		o := network(kind)
		o.SetName(name)
		o.Object["spec"] = spec
		w.make(t, o)
		t.Cleanup(func() {
			if err := change(o, allow)(context.Background(), w.admin); err != nil {
				t.Error(err)
			}
		})
		return o
	}
	pods := object("Subnet", kubeovnv1.DefaultSubnet, map[string]any{"cidrBlock": "10.16.0.0/16"})
	join := object("Subnet", kubeovnv1.JoinSubnet, map[string]any{"cidrBlock": "100.64.0.0/16"})
	router := object("Vpc", kubeovnv1.DefaultVpc, map[string]any{})
	definition := func(name string) client.Object {
		o := workload.Untyped(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
		o.SetName(name)
		return o
	}
	all := func(ctx context.Context, c client.Client) error { return c.DeleteAllOf(ctx, &kubeovnv1.Subnet{}) }
	guarded := []trial{{"ovn-default among all Subnets", asAdmin, all, "kubectl annotate subnets "}}
	for resource, o := range map[string]client.Object{
		"subnets ovn-default": pods, "subnets join": join, "vpcs ovn-cluster": router,
		"customresourcedefinitions ovnclusters.kubeovn.io": definition("ovnclusters.kubeovn.io"), "customresourcedefinitions subnets.kubeovn.io": definition("subnets.kubeovn.io"),
	} {
		guarded = append(guarded, trial{resource, asAdmin, remove(o), fmt.Sprintf("kubectl annotate %s %s=true", resource, v1alpha1.AnnotationAllowRemoval)})
	}
	w.until(t, remove(join), func(err error) bool { return apierrors.IsForbidden(err) })
	w.try(t, guarded)
	w.try(t, []trial{
		{"another Subnet", asAdmin, remove(object("Subnet", "other", map[string]any{"cidrBlock": "10.20.0.0/16"})), ""},
		{"another Vpc", asAdmin, remove(object("Vpc", "other", map[string]any{})), ""},
	})

	definitions := definition("ovnclusters.kubeovn.io")
	for _, o := range []client.Object{pods, router, definitions} {
		if err := change(o, allow)(t.Context(), w.admin); err != nil {
			t.Fatal(err)
		}
		w.try(t, []trial{{o.GetName() + " with the annotation", asAdmin, remove(o), ""}})
	}
	if err := change(definitions, strings.ReplaceAll(allow, `"true"`, "null"))(t.Context(), w.admin); err != nil {
		t.Fatal(err)
	}
	w.try(t, guarded[:1])

	end := removal{Reconciler: &Reconciler{Client: w.admin}}
	for range 2 { // the second pass finds no policy
		if err := end.permitRemoval(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	w.until(t, remove(join), func(err error) bool { return err == nil })
}

// until waits until a write of the administrator has this outcome: the API server notices changes of policies late.
func (w *tenancy) until(t *testing.T, write write, outcome func(error) bool) {
	t.Helper()
	for deadline := time.Now().Add(soon); ; <-time.After(often) {
		err := write(t.Context(), client.NewDryRunClient(w.admin))
		if outcome(err) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the write still gives: %v", err)
		}
	}
}
