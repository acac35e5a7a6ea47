// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/testing/prepared"
	"github.com/kiln-net/kiln/test/cluster"
)

// unreadySamples are the samples that do not become Ready in the lab, with the reason in their condition. All samples become Ready today.
var unreadySamples = map[string]string{}

// kubectl runs kubectl in the lab and returns its output.
func kubectl(ctx context.Context, args ...string) (string, error) {
	program, err := prepared.File("bin/kubectl")
	if err != nil {
		return "", err
	}
	out, err := osexec.CommandContext(ctx, program, append([]string{"--kubeconfig", suite.Lab.Kubeconfig()}, args...)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// samplesWithoutOVNCluster returns a directory with a kustomization of config/samples. It leaves out the OVNCluster, because the suite has its own:
// that of the sample needs the kernel's datapath.
func samplesWithoutOVNCluster() string {
	GinkgoHelper()
	dir := GinkgoT().TempDir()
	samples, err := filepath.Abs("../../config/samples")
	Expect(err).NotTo(HaveOccurred())
	relative, err := filepath.Rel(dir, samples)
	Expect(err).NotTo(HaveOccurred())
	text := fmt.Sprintf("resources: [%s]\npatches:\n- patch: |-\n    $patch: delete\n    apiVersion: kubeovn.io/v1alpha1\n    kind: OVNCluster\n    metadata:\n      name: default\n", relative)
	Expect(os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600)).To(Succeed())
	return dir
}

var _ = Describe("the samples", Ordered, func() {
	It("become Ready, all at once", func(ctx SpecContext) {
		withExternalNetwork(ctx, suite.Workers[0])
		label(ctx, suite.Workers[0], "yes") // subnet_centralized.yaml needs a gateway node
		DeferCleanup(func(ctx SpecContext) { label(ctx, suite.Workers[0], "") }, NodeTimeout(time.Minute))
		dir := samplesWithoutOVNCluster()
		DeferCleanup(func(ctx SpecContext) {
			_, err := kubectl(ctx, "delete", "-k", dir, "--ignore-not-found", "--grace-period=1", "--timeout=2m")
			Expect(err).NotTo(HaveOccurred())
		}, NodeTimeout(3*time.Minute))
		// Kubernetes creates the ServiceAccount of a new namespace a moment after the namespace, and pods need it.
		Eventually(func() error { return cluster.ApplyManifests(ctx, suite.Lab.Kubeconfig(), dir) }).WithContext(ctx).
			WithTimeout(20 * time.Second).Should(Succeed())
		Eventually(func(g Gomega) {
			text, err := kubectl(ctx, "get", "-k", dir, "-o", "json")
			g.Expect(err).NotTo(HaveOccurred())
			var list unstructured.UnstructuredList
			g.Expect(json.Unmarshal([]byte(text), &list)).To(Succeed())
			g.Expect(len(list.Items)).To(BeNumerically(">", 40))
			var wrong []string
			for i := range list.Items {
				if problem := problemOf(&list.Items[i]); problem != "" {
					wrong = append(wrong, problem)
				}
			}
			g.Expect(wrong).To(BeEmpty())
		}).WithContext(ctx).WithTimeout(45 * time.Second).WithPolling(time.Second).Should(Succeed())
	}, SpecTimeout(90*time.Second))
})

// problemOf returns why a sample is not Ready, unless that is expected. Kinds without a condition Ready always have an effect.
func problemOf(o *unstructured.Unstructured) string {
	name := o.GetKind() + " " + o.GetName()
	if o.GetKind() == "Pod" {
		var pod corev1.Pod
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &pod); err != nil {
			return fmt.Sprintf("%s: %v", name, err)
		}
		if !cluster.Ready(&pod) {
			return fmt.Sprintf("%s: %s", name, pod.Status.Phase)
		}
		return ""
	}
	if !strings.HasPrefix(o.GetAPIVersion(), kubeovnv1.GroupVersion.Group) || o.GetKind() == "IP" {
		return ""
	}
	conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	at := slices.IndexFunc(conditions, func(c any) bool { return c.(map[string]any)["type"] == kubeovnv1.ConditionReady })
	if at < 0 {
		return name + " has no condition Ready"
	}
	ready := conditions[at].(map[string]any)
	if reason, expected := unreadySamples[name]; ready["status"] == "True" || expected && ready["reason"] == reason && ready["message"] != "" {
		return ""
	}
	return fmt.Sprintf("%s: %v: %v", name, ready["reason"], ready["message"])
}
