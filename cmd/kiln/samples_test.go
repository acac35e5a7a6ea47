// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/test/applied"
)

// TestSamplesBecomeReady applies config/samples like `kubectl apply -k`, except the OVNCluster, with the controller's defaults. Every network
// resource becomes ready, and every pod gets its network. Applying them again changes nothing. The end-to-end suite does the same with all
// components.
func TestSamplesBecomeReady(t *testing.T) {
	c := useAPIServer(t)
	certificates := newCertificates(t)
	listen(t, certificates, 8, nbtest.Start(t))
	newCluster(t, c, 8)
	for _, name := range []string{"worker-1", "worker-2"} { // names in the samples
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"network.example.com/gateway": "yes", "node-restriction.kubernetes.io/gateway": "yes"}}}
		must.Succeed(t, c.Create(t.Context(), node))
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}} // the gateway of a sample
		must.Succeed(t, c.Status().Update(t.Context(), node))
	}
	startController(t, certificates, "controller", os.Getenv("KUBECONFIG"), healthAt(13),
		append([]string{"--pod-cidrs=10.16.0.0/16,fd00:10:16::/112"}, long...)...)
	objects := samples(t)
	if len(objects) < 40 {
		t.Fatalf("only %d samples", len(objects))
	}
	for _, o := range objects {
		if o.GetKind() == "Pod" { // no scheduler runs
			must.Succeed(t, unstructured.SetNestedField(o.Object, "worker-1", "spec", "nodeName"))
		}
		must.Succeed(t, c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(o.DeepCopy()), client.FieldOwner("kubectl")))
	}
	for _, o := range objects {
		eventually.Until(t, func() string {
			stored := o.DeepCopy()
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(o), stored); err != nil {
				return err.Error()
			}
			return unready(stored)
		})
	}
	for _, o := range objects {
		if diff, err := applied.Diff(t.Context(), c, o, "kubectl"); err != nil || diff != "" {
			t.Errorf("%s %s, applied again: %v\n%s", o.GetKind(), o.GetName(), err, diff)
		}
	}
}

// unready returns why a sample has no effect yet. Kinds without a condition Ready always have an effect.
func unready(o *unstructured.Unstructured) string {
	if o.GetKind() == "Pod" {
		if network, err := kubeovnv1.ParsePodNetwork(o.GetAnnotations()); err != nil || !network.IsFor(o.GetUID()) {
			return fmt.Sprintf("pod %s has no network: %v", o.GetName(), o.GetAnnotations())
		}
		return ""
	}
	if !strings.HasPrefix(o.GetAPIVersion(), kubeovnv1.GroupVersion.Group) || o.GetKind() == "IP" {
		return ""
	}
	conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, item := range conditions {
		if c, _ := item.(map[string]any); c["type"] == kubeovnv1.ConditionReady && c["status"] == "True" {
			return ""
		}
	}
	return fmt.Sprintf("%s %s is not ready: %v", o.GetKind(), o.GetName(), conditions)
}

// samples returns the objects of config/samples/kustomization.yaml in their order, without the OVNCluster.
func samples(t *testing.T) (objects []*unstructured.Unstructured) {
	t.Helper()
	dir := filepath.Join("..", "..", "config", "samples")
	content, err := os.ReadFile(filepath.Join(dir, "kustomization.yaml"))
	must.Succeed(t, err)
	var list struct{ Resources []string }
	must.Succeed(t, yaml.Unmarshal(content, &list))
	for _, name := range list.Resources {
		file, err := os.Open(filepath.Join(dir, name))
		must.Succeed(t, err)
		defer file.Close()
		decoder := utilyaml.NewYAMLOrJSONDecoder(file, 4096)
		for {
			o := &unstructured.Unstructured{}
			if decoder.Decode(&o.Object) != nil {
				break
			}
			if len(o.Object) > 0 && o.GetKind() != "OVNCluster" {
				objects = append(objects, o)
			}
		}
	}
	return objects
}
