// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	bundles "github.com/operator-framework/api/pkg/manifests"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/hack/packaging/olm"
	"github.com/kiln-net/kiln/hack/packaging/render"
	"github.com/kiln-net/kiln/test/cluster"
)

const (
	// packaging is the label of the specs of `make test-install`.
	packaging   = "packaging"
	configFiles = "../../config"
)

// way is a way to install Kiln. INSTALL_BY names the one by which the suite installs it.
type way struct {
	// images are the images of the first and of the second version.
	images [2]string
	// apply installs a version.
	apply func(ctx context.Context, image string)
	// publish makes the image of the second version available to nodes.
	publish func(ctx context.Context, image string)
	// upgrade upgrades to a version.
	upgrade func(ctx context.Context, image string)
	// remove removes the OVNCluster.
	remove func(ctx context.Context)
	// uninstall removes what apply has created, after remove.
	uninstall func(ctx context.Context)
	// withOVNCluster is true for ways that include the OVNCluster.
	withOVNCluster bool
}

// ways are the ways of docs/operations/packages.md. The lab has kube-proxy for all but no-kube-proxy and bundle.
func ways() map[string]way {
	return map[string]way{
		"installer":     loaded(way{apply: applyInstaller, uninstall: deleteInstaller}),
		"dual-stack":    overlay("dual-stack", "userspace"),
		"no-kube-proxy": overlay("no-kube-proxy", "dual-stack", "userspace"),
		"bundle":        loaded(way{apply: applyBundle, uninstall: deleteBundle}),
		"readme":        followReadme(),
		"one-file":      followOneFile(),
	}
}

// loaded completes a way whose image the nodes have already. The second version is another name of the image.
func loaded(w way) way {
	w.images, w.upgrade, w.remove = [2]string{headImage, nextImage}, w.apply, remove
	w.publish = func(ctx context.Context, image string) {
		GinkgoHelper()
		var nodes corev1.NodeList // machines without power have no Node object
		Expect(suite.Objects.List(ctx, &nodes)).To(Succeed())
		for i := range nodes.Items {
			exec(ctx, nodes.Items[i].Name, "ctr", "--address", "/run/containerd/containerd.sock", "--namespace", "k8s.io", "images", "tag", "--force", headImage, image)
		}
	}
	return w
}

// chosenWay returns the way of INSTALL_BY, and false without that variable.
func chosenWay() (way, bool) {
	GinkgoHelper()
	name := os.Getenv("INSTALL_BY")
	if name == "" {
		return way{}, false
	}
	Expect(ways()).To(HaveKey(name))
	return ways()[name], true
}

// labValues returns the values that a user sets for the lab: all of LabSpec that is neither a default of Kiln nor part of an overlay.
func labValues() v1alpha1.OVNClusterSpec {
	GinkgoHelper()
	spec := asInstalled()
	spec.Network = v1alpha1.Network{ServiceCIDRs: spec.Network.ServiceCIDRs}
	spec.Nodes.Datapath = ""
	spec.Services = v1alpha1.Services{}
	if suite.Lab.KubeProxy() {
		spec.APIServer = nil // the ClusterIP, which kube-proxy serves
	}
	return spec
}

func installerFile(image string) string {
	GinkgoHelper()
	text, err := render.YAML(filepath.Join(configFiles, "default"), image)
	Expect(err).NotTo(HaveOccurred())
	path := filepath.Join(GinkgoT().TempDir(), "install.yaml")
	Expect(os.WriteFile(path, text, 0o600)).To(Succeed())
	return path
}

func applyInstaller(ctx context.Context, image string) {
	GinkgoHelper()
	Expect(cluster.ApplyFile(ctx, suite.Lab.Kubeconfig(), installerFile(image))).To(Succeed())
}

func deleteInstaller(ctx context.Context) {
	GinkgoHelper()
	_, err := kubectl(ctx, "delete", "-f", installerFile(""), "--timeout=2m")
	Expect(err).NotTo(HaveOccurred())
}

// overlay returns the way by an overlay with further components. The second pass of `kubectl apply` creates the OVNCluster.
func overlay(name string, components ...string) way {
	return loaded(way{
		withOVNCluster: true,
		apply: func(ctx context.Context, image string) {
			GinkgoHelper()
			dir := kustomization(name, components, image)
			Eventually(func() error { return cluster.ApplyManifests(ctx, suite.Lab.Kubeconfig(), dir) }).WithContext(ctx).
				WithTimeout(time.Minute).WithPolling(time.Second).Should(Succeed())
		},
		uninstall: func(ctx context.Context) {
			GinkgoHelper()
			_, err := kubectl(ctx, "delete", "-k", kustomization(name, components, headImage), "--ignore-not-found", "--timeout=2m")
			Expect(err).NotTo(HaveOccurred())
		},
	})
}

// kustomization writes a kustomization of an overlay for the lab, as docs/operations/packages.md shows it.
func kustomization(name string, components []string, image string) string {
	GinkgoHelper()
	dir := GinkgoT().TempDir()
	config, err := filepath.Abs(configFiles)
	Expect(err).NotTo(HaveOccurred())
	config, err = filepath.Rel(dir, config)
	Expect(err).NotTo(HaveOccurred())
	text := fmt.Sprintf("resources: [%s/overlays/%s]\ncomponents:\n", config, name)
	for _, component := range components {
		text += fmt.Sprintf("- %s/components/%s\n", config, component)
	}
	repository, tag, _ := strings.Cut(image, ":")
	text += fmt.Sprintf("images:\n- {name: %s, newName: %s, newTag: %s}\npatches:\n", render.Image, repository, tag)
	values, err := json.Marshal(map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "OVNCluster", "metadata": map[string]string{"name": v1alpha1.OVNClusterName}, "spec": labValues(),
	})
	Expect(err).NotTo(HaveOccurred())
	text += fmt.Sprintf("- patch: '%s'\n", values)
	if !suite.Lab.KubeProxy() {
		text += "- target: {kind: Deployment, name: kiln-operator}\n  patch: |\n    - op: replace\n      path: /spec/template/spec/containers/0/env\n" +
			"      value:\n      - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}\n" +
			"      - {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}\n"
		for _, v := range operatorEnv() {
			text += fmt.Sprintf("      - {name: %s, value: %q}\n", v.Name, v.Value)
		}
	}
	Expect(os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600)).To(Succeed())
	return dir
}

// operatorEnv returns the address of the API server for the operator, without kube-proxy.
func operatorEnv() []corev1.EnvVar {
	server := asInstalled().APIServer
	return []corev1.EnvVar{
		{Name: "KUBERNETES_SERVICE_HOST", Value: server.Host}, {Name: "KUBERNETES_SERVICE_PORT", Value: fmt.Sprint(server.Port)},
	}
}

// versionOf returns the version of the bundle with an image: the lab's image is that of the first one.
func versionOf(image string) olm.Options {
	if image == headImage {
		return olm.Options{Config: configFiles, Version: "v0.1.0", Image: image}
	}
	return olm.Options{Config: configFiles, Version: "v0.2.0", Image: image, Replaces: "v0.1.0"}
}

// ofBundle returns the objects that OLM creates from a version of the bundle for an OperatorGroup of the operator's namespace.
func ofBundle(o olm.Options) []*unstructured.Unstructured {
	GinkgoHelper()
	dir := GinkgoT().TempDir()
	Expect(olm.Write(o, dir)).To(Succeed())
	bundle, err := bundles.GetBundleFromDir(dir)
	Expect(err).NotTo(HaveOccurred())
	target := olm.Target{Namespace: cluster.Namespace}
	if !suite.Lab.KubeProxy() {
		target.Env = operatorEnv()
	}
	objects, err := olm.Objects(bundle, target)
	Expect(err).NotTo(HaveOccurred())
	return objects
}

// applyBundle does what OLM does: it creates the objects of the version and deletes those of the version that it replaces.
func applyBundle(ctx context.Context, image string) {
	GinkgoHelper()
	Expect(cluster.ApplyManifests(ctx, suite.Lab.Kubeconfig(), filepath.Join(configFiles, "admission"))).To(Succeed())
	o := versionOf(image)
	for _, object := range ofBundle(o) {
		Expect(suite.Objects.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("olm"), client.ForceOwnership)).To(Succeed())
	}
	if o.Replaces == "" {
		return
	}
	for _, object := range ofBundle(versionOf(headImage)) {
		if err := suite.Objects.Get(ctx, client.ObjectKeyFromObject(object), object); apierrors.IsNotFound(err) {
			continue
		}
		if object.GetLabels()[olm.OwnerLabel] == olm.Name(o.Replaces) {
			Expect(suite.Objects.Delete(ctx, object)).To(Succeed())
		}
	}
}

// deleteBundle deletes what OLM deletes with the ClusterServiceVersion, and then what OLM leaves to the user: the definitions and the policies.
func deleteBundle(ctx context.Context) {
	GinkgoHelper()
	objects := ofBundle(versionOf(nextImage))
	for _, definitions := range []bool{false, true} {
		for _, object := range objects {
			if (object.GetKind() == "CustomResourceDefinition") == definitions {
				Expect(client.IgnoreNotFound(suite.Objects.Delete(ctx, object))).To(Succeed())
			}
		}
	}
	_, err := kubectl(ctx, "delete", "-k", filepath.Join(configFiles, "admission"))
	Expect(err).NotTo(HaveOccurred())
}

// The suite has installed Kiln by the way of INSTALL_BY.
var _ = Describe("an installation by packages", Ordered, Label(packaging, disruptive, mayRestart), func() {
	var chosen way
	BeforeAll(func(ctx SpecContext) {
		var found bool
		chosen, found = chosenWay()
		Expect(found).To(BeTrue(), "run `make test-install`")
		chosen.publish(ctx, chosen.images[1])
	}, NodeTimeout(10*time.Minute))

	It("passes all checks", func(ctx SpecContext) { expectAllChecks(ctx) }, SpecTimeout(5*time.Minute))

	It("upgrades under traffic", Label(timed), func(ctx SpecContext) {
		traffic := startTraffic(ctx, makePair(ctx, membersNamespace))
		chosen.upgrade(ctx, chosen.images[1])
		runsOn(ctx, chosen.images[1])
		traffic(ctx, "upgrade", 2)
		expectAllChecks(ctx)
	}, SpecTimeout(15*time.Minute))

	It("is removed completely", func(ctx SpecContext) {
		chosen.remove(ctx)
		chosen.uninstall(ctx)
		left := func() (names []string) {
			for _, kind := range []string{
				"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
				"Deployment", "StatefulSet", "DaemonSet", "ServiceAccount", "CustomResourceDefinition",
			} {
				text, err := kubectl(ctx, "get", kind, "--all-namespaces", "--output=name", "--ignore-not-found", "--selector=app.kubernetes.io/part-of=kiln")
				Expect(err).NotTo(HaveOccurred())
				names = append(names, strings.Fields(text)...)
			}
			return names
		}
		Eventually(left).WithContext(ctx).WithTimeout(time.Minute).WithPolling(time.Second).Should(BeEmpty())
		text, err := kubectl(ctx, "get", "CustomResourceDefinition", "--output=name", "--ignore-not-found")
		Expect(err).NotTo(HaveOccurred())
		Expect(text).NotTo(ContainSubstring("kubeovn.io"))
		_, err = suite.Cluster.AppsV1().Deployments(cluster.Namespace).Get(ctx, "kiln-operator", metav1.GetOptions{})
		Expect(apierrors.IsNotFound(err)).To(BeTrue())
	}, SpecTimeout(8*time.Minute))
})
