// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package render

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/prepared/apiserver"
	"github.com/kiln-net/kiln/test/applied"
)

var config = filepath.Join("..", "..", "..", "config")

// overlays are the directories of config/overlays, with what distinguishes their OVNCluster.
var overlays = map[string]func(v1alpha1.OVNClusterSpec) bool{
	"kernel":     func(s v1alpha1.OVNClusterSpec) bool { return s.Nodes.Datapath == v1alpha1.DatapathKernel },
	"userspace":  func(s v1alpha1.OVNClusterSpec) bool { return s.Nodes.Datapath == v1alpha1.DatapathUserspace },
	"ha":         func(s v1alpha1.OVNClusterSpec) bool { return s.Central.Replicas == 3 && s.Controller.Replicas == 2 },
	"kube-proxy": func(s v1alpha1.OVNClusterSpec) bool { return s.Services.NodeAccess == v1alpha1.NodeAccessKubeProxy },
	"no-kube-proxy": func(s v1alpha1.OVNClusterSpec) bool {
		return s.Services.NodeAccess == v1alpha1.NodeAccessKiln && s.APIServer != nil
	},
	"dual-stack": func(s v1alpha1.OVNClusterSpec) bool {
		return len(s.Network.PodCIDRs) == 2 && len(s.Network.ServiceCIDRs) == 2
	},
	"ipv6": func(s v1alpha1.OVNClusterSpec) bool {
		return slices.Equal(s.Network.PodCIDRs, []string{"fd00:10:16::/112"})
	},
	"managed": func(s v1alpha1.OVNClusterSpec) bool {
		return len(s.Central.NodeSelector) == 1 && maps.Equal(s.Central.NodeSelector, s.Controller.NodeSelector) && !k8s.KubeletsMaySatisfy(s.Central.NodeSelector)
	},
	"rke2": func(s v1alpha1.OVNClusterSpec) bool { return len(s.Central.Tolerations) == 1 },
	"k3s": func(s v1alpha1.OVNClusterSpec) bool {
		return s.Agent.CNIBinDirectory == "/var/lib/rancher/k3s/data/cni"
	},
}

// combined is a kustomization as docs/operations/packages.md shows it: an overlay, more components, patches, and another namespace. %s is the
// path of config.
const combined = `namespace: kiln-system
resources: [%[1]s/overlays/no-kube-proxy]
components: [%[1]s/components/dual-stack, %[1]s/components/ha, %[1]s/components/cert-manager]
images:
- {name: kiln.local/kiln, newName: registry.example.com/kiln, newTag: v0.1.0}
patches:
- patch: |
    apiVersion: kubeovn.io/v1alpha1
    kind: OVNCluster
    metadata: {name: default}
    spec: {apiServer: {host: 192.168.0.10}}
- patch: |
    apiVersion: apps/v1
    kind: Deployment
    metadata: {name: kiln-operator, namespace: kube-system}
    spec:
      template:
        spec:
          containers:
          - name: kiln-operator
            env:
            - {name: KUBERNETES_SERVICE_HOST, value: 192.168.0.10}
`

// TestOverlaysApply applies config/default, every overlay and a combination of components to an API server, one after another, as one user with
// server-side apply. No field may be unknown or in conflict. Another manager of fields can then take the objects over without force.
func TestOverlaysApply(t *testing.T) {
	c := start(t)
	entries, err := os.ReadDir(filepath.Join(config, "overlays"))
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		t.Run(entry.Name(), func(t *testing.T) {
			distinct, known := overlays[entry.Name()]
			if !known {
				t.Fatal("the test has no row for this overlay")
			}
			spec, operator := apply(t, c, filepath.Join(config, "overlays", entry.Name()), "kube-system")
			if !distinct(spec) {
				t.Errorf("the OVNCluster is not what the overlay is for: %+v", spec)
			}
			checkOperatorNodes(t, operator)
		})
	}
	if len(entries) != len(overlays) {
		t.Errorf("config/overlays has %d directories, and the test %d rows", len(entries), len(overlays))
	}
	t.Run("combined", func(t *testing.T) {
		dir, err := os.MkdirTemp(".", "combined-") // in the repository: kustomize takes no absolute paths
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		text := fmt.Sprintf(combined, filepath.Join("..", config))
		if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kiln-system"}}); err != nil {
			t.Fatal(err)
		}
		spec, operator := apply(t, c, dir, "kiln-system")
		takeOver(t, c, dir)
		if spec.APIServer.Host != "192.168.0.10" || spec.Services.NodeAccess != v1alpha1.NodeAccessKiln || spec.Central.Replicas != 3 ||
			len(spec.Network.PodCIDRs) != 2 || spec.Certificates.IssuerRef == nil {
			t.Errorf("the OVNCluster lacks fields of a component: %+v", spec)
		}
		container := operator.Spec.Template.Spec.Containers[0]
		if container.Image != "registry.example.com/kiln:v0.1.0" {
			t.Errorf("the operator runs %s", container.Image)
		}
		values := map[string]string{}
		for _, v := range container.Env {
			values[v.Name] = v.Value
		}
		if values["KUBERNETES_SERVICE_HOST"] != "192.168.0.10" || values["KUBERNETES_SERVICE_PORT"] != "6443" {
			t.Errorf("the operator has the environment %v", container.Env)
		}
	})
}

// checkOperatorNodes checks that a kubelet cannot make its node one of the operator, whose token is equivalent to root on every node.
func checkOperatorNodes(t *testing.T, operator *appsv1.Deployment) {
	t.Helper()
	affinity := operator.Spec.Template.Spec.Affinity
	if affinity == nil || affinity.NodeAffinity == nil || affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		t.Fatal("the operator may run on any node")
	}
	for _, term := range affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		labels := map[string]string{}
		for _, e := range term.MatchExpressions {
			if e.Operator == corev1.NodeSelectorOpIn || e.Operator == corev1.NodeSelectorOpExists {
				labels[e.Key] = ""
			}
		}
		if len(labels) == 0 || k8s.KubeletsMaySatisfy(labels) {
			t.Errorf("a kubelet can write the labels of the operator's nodes: %v", term)
		}
	}
}

// TestTheOperatorRunsOnRestrictedNodesOnly checks the manifests without an API server. TestOverlaysApply checks what an API server stores.
func TestTheOperatorRunsOnRestrictedNodesOnly(t *testing.T) {
	for _, path := range []string{"default", "overlays/managed", "overlays/ha"} {
		t.Run(path, func(t *testing.T) {
			objects, err := Objects(filepath.Join(config, path), "")
			if err != nil {
				t.Fatal(err)
			}
			found := false
			for _, o := range objects {
				if o.GetKind() != "Deployment" {
					continue
				}
				found = true
				operator := &appsv1.Deployment{}
				if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, operator); err != nil {
					t.Fatal(err)
				}
				checkOperatorNodes(t, operator)
			}
			if !found {
				t.Error("there is no Deployment")
			}
		})
	}
}

// start starts an API server without our definitions.
func start(t *testing.T) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme), apiextensionsv1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(apiserver.StartFor(t, apiserver.NoKinds).Config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return client.WithFieldOwner(client.WithFieldValidation(c, metav1.FieldValidationStrict), "kubectl")
}

// apply applies a kustomization whose operator is in a namespace. It returns the stored OVNCluster's spec and the operator's Deployment.
func apply(t *testing.T, c client.Client, dir, namespace string) (v1alpha1.OVNClusterSpec, *appsv1.Deployment) {
	t.Helper()
	objects, err := Objects(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	definitions := map[string]bool{}
	for _, o := range objects {
		if o.GetKind() == "CustomResourceDefinition" {
			definitions[o.GetName()] = false
		} else {
			eventually.Wait{}.Succeeds(t, func() error { return established(t.Context(), c, definitions) })
		}
		if err := c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(o.DeepCopy())); err != nil {
			t.Fatalf("apply %s %s: %v", o.GetKind(), o.GetName(), err)
		}
	}
	oc, operator := &v1alpha1.OVNCluster{}, &appsv1.Deployment{}
	err = errors.Join(c.Get(t.Context(), client.ObjectKey{Name: v1alpha1.OVNClusterName}, oc),
		c.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "kiln-operator"}, operator))
	if err != nil {
		t.Fatal(err)
	}
	return oc.Spec, operator
}

// takeOver applies a kustomization again, as a dry run by another manager of fields.
func takeOver(t *testing.T, c client.Client, dir string) {
	t.Helper()
	objects, err := Objects(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if diff, err := applied.Diff(t.Context(), c, o, "another"); err != nil || diff != "" {
			t.Errorf("another manager of fields applies %s %s: %v\n%s", o.GetKind(), o.GetName(), err, diff)
		}
	}
}

// established reports definitions that the API server does not serve yet.
func established(ctx context.Context, c client.Client, served map[string]bool) error {
	for name, done := range served {
		if done {
			continue
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := c.Get(ctx, client.ObjectKey{Name: name}, crd); err != nil {
			return err
		}
		for _, condition := range crd.Status.Conditions {
			served[name] = served[name] || condition.Type == apiextensionsv1.Established && condition.Status == apiextensionsv1.ConditionTrue
		}
		if !served[name] {
			return fmt.Errorf("%s is not established", name)
		}
	}
	return nil
}

// TestInstallationIsComplete compares config/default with the files of its directories: kustomizations list files by hand.
func TestInstallationIsComplete(t *testing.T) {
	objects, err := Objects(filepath.Join(config, "default"), "registry.example.com/kiln@sha256:"+strings.Repeat("0", 64))
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	for _, o := range objects {
		kinds[o.GetKind()]++
		if o.GetKind() == "Deployment" {
			containers, _, _ := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
			if image := containers[0].(map[string]any)["image"]; image != "registry.example.com/kiln@sha256:"+strings.Repeat("0", 64) {
				t.Errorf("the operator runs %v", image)
			}
		}
	}
	bases, err := filepath.Glob(filepath.Join(config, "crd", "bases", "*.yaml"))
	if err != nil || kinds["CustomResourceDefinition"] != len(bases) || len(bases) < 20 {
		t.Errorf("%d definitions of %d, %v", kinds["CustomResourceDefinition"], len(bases), err)
	}
	if kinds["ValidatingAdmissionPolicy"] != 3 || kinds["ValidatingAdmissionPolicyBinding"] != 3 || kinds["Deployment"] != 1 || kinds["ClusterRole"] != 4 {
		t.Errorf("config/default has %v", kinds)
	}
}

func TestImagesMustBeReferences(t *testing.T) {
	for _, image := range []string{"kiln", "registry.example.com/kiln", "registry.example.com/kiln:", "a b:c"} {
		if _, err := Objects(filepath.Join(config, "manager"), image); err == nil || !strings.Contains(err.Error(), image) {
			t.Errorf("image %q: %v", image, err)
		}
	}
}
