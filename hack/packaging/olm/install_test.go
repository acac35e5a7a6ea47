// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package olm

import (
	"path/filepath"
	"testing"

	"github.com/operator-framework/api/pkg/manifests"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/internal/testing/prepared/apiserver"
)

// TestTheBundleInstallsAsOLMDoes applies what OLM creates from two versions of the bundle to an API server, one after another and by the ways that
// the install modes allow, and checks what the operator may do.
func TestTheBundleInstallsAsOLMDoes(t *testing.T) {
	plain, err := client.New(apiserver.StartFor(t, apiserver.NoKinds).Config, client.Options{Scheme: clientgoscheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	c := client.WithFieldOwner(client.WithFieldValidation(plain, metav1.FieldValidationStrict), "olm")

	first := load(t, write(t, Options{Version: "v0.1.0", Image: "registry.example.com/kiln:v0.1.0"}))
	second := load(t, write(t, Options{Version: "v0.2.0", Image: "registry.example.com/kiln:v0.2.0", Replaces: "v0.1.0"}))
	for _, tt := range []struct {
		target    Target
		elsewhere bool // whether the operator may change its workloads' names in other namespaces
	}{
		{Target{Namespace: "own"}, false},
		{Target{Namespace: "all", AllNamespaces: true}, true},
	} {
		t.Run(tt.target.Namespace, func(t *testing.T) {
			if err := c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: tt.target.Namespace}}); err != nil {
				t.Fatal(err)
			}
			tt.target.Env = []corev1.EnvVar{{Name: "KUBERNETES_SERVICE_HOST", Value: "192.0.2.10"}}
			for _, bundle := range []*manifests.Bundle{first, second} {
				install(t, c, bundle, tt.target)
				deployment := &appsv1.Deployment{}
				if err := c.Get(t.Context(), client.ObjectKey{Namespace: tt.target.Namespace, Name: operatorName}, deployment); err != nil {
					t.Fatal(err)
				}
				container := deployment.Spec.Template.Spec.Containers[0]
				if container.Image != bundle.CSV.Spec.RelatedImages[0].Image || len(container.Env) != 4 {
					t.Errorf("the operator runs %s with %v", container.Image, container.Env)
				}
			}
			for namespace, want := range map[string]bool{tt.target.Namespace: true, "elsewhere": tt.elsewhere} {
				if got := may(t, c, tt.target.Namespace, namespace); got != want {
					t.Errorf("the operator may patch its DaemonSet in namespace %s: %t", namespace, got)
				}
			}
		})
	}
}

func install(t *testing.T, c client.Client, bundle *manifests.Bundle, target Target) {
	t.Helper()
	objects, err := Objects(bundle, target)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if err := c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(o)); err != nil {
			t.Fatalf("apply %s %s of %s: %v", o.GetKind(), o.GetName(), filepath.Base(bundle.Name), err)
		}
	}
}

// may returns whether the operator of a namespace may patch the DaemonSet ovs-ovn of another.
func may(t *testing.T, c client.Client, operator, namespace string) bool {
	t.Helper()
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: "system:serviceaccount:" + operator + ":" + operatorName,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: namespace, Verb: "patch", Group: "apps", Resource: "daemonsets", Name: "ovs-ovn",
		},
	}}
	if err := c.Create(t.Context(), review); err != nil {
		t.Fatal(err)
	}
	return review.Status.Allowed
}
