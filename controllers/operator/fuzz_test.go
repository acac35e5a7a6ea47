// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/testing/fuzzedit"
)

// FuzzOVNCluster edits an OVNCluster. When a real API server and resolveNetwork accept it, the API server accepts all objects that the
// operator renders from it. Nothing is stored. Package fuzzedit defines the form of the edits. Resources, node selectors, tolerations and claims are not
// edited: the operator copies them into the objects unchanged, and a condition reports errors of the API server about them.
func FuzzOVNCluster(f *testing.F) {
	cluster := map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "OVNCluster", "metadata": map[string]any{"name": v1alpha1.OVNClusterName}, "spec": map[string]any{},
	}
	f.Add("")
	f.Add("/spec/network/podCIDRs/0=10.16.0.0/16\n/spec/network/podCIDRs/1=fd00:10:16::/112\n/spec/network/mtu=1400\n/spec/network/tunnelType=vxlan")
	f.Add("/spec/central/dataDirectory=/var/../x")
	f.Add("/spec/agent/cniBinDirectory=/..\n/spec/agent/cniConfDirectory=//...//.\n/spec/agent/toolingDirectory=//.")
	f.Add("/spec/nodes/tunnelInterface=\"e\\u0000\"\n/spec/nodes/datapath=Userspace\n/spec/controller/logLevel=10")
	f.Add("/spec/apiServer/host=a b,c\n/spec/apiServer/port=6443\n/spec/services/nodeAccess=Kiln")
	f.Add("/spec/central/replicas=5\n/spec/central/northdReplicas=5\n/spec/controller/replicas=5\n/spec/central/portAccess=Open")
	f.Add("/spec/imagePullPolicy=Always\n/spec/imagePullSecrets/0/name=a b")
	f.Add("/spec/central/backup/interval=1h\n/spec/central/backup/keep=1")
	theWorld.discard(f)
	f.Fuzz(func(t *testing.T, edits string) {
		edited, err := fuzzedit.Apply(cluster, edits)
		if err != nil {
			return
		}
		o := &unstructured.Unstructured{Object: edited}
		if theWorld.admin.Create(t.Context(), o, client.DryRunAll) != nil {
			return
		}
		var accepted v1alpha1.OVNCluster
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &accepted); err != nil {
			t.Fatalf("decode the OVNCluster that the API server accepted with the edits %q: %v", edits, err)
		}
		network, _, err := resolveNetwork(accepted.Spec.Network)
		if err != nil {
			return
		}
		spec := accepted.Spec
		spec.Network = network
		spec.Central.Placement, spec.Controller.Placement = v1alpha1.Placement{}, v1alpha1.Placement{}
		spec.Agent.Resources, spec.Central.Backup.Resources, spec.Central.Backup.PersistentVolumeClaim = corev1.ResourceRequirements{}, corev1.ResourceRequirements{}, nil
		for _, w := range []*v1alpha1.Workload{
			&spec.Central.Northbound, &spec.Central.Southbound, &spec.Central.Northd, &spec.Agent.CNI, &spec.Agent.OpenVSwitch,
		} {
			*w = v1alpha1.Workload{}
		}
		config := render.Config{Namespace: "default", Image: "kiln:dev", Spec: spec, Members: map[string][]string{"nb": {"n1"}, "sb": {"n1"}}}
		for _, rendered := range operands(config) {
			err := theWorld.admin.Create(t.Context(), rendered, client.DryRunAll)
			if err != nil && !apierrors.IsAlreadyExists(err) {
				t.Errorf("%T %s of an OVNCluster with the edits %q: %v", rendered, rendered.GetName(), edits, err)
			}
		}
	})
}

// operands returns copies of the applied objects, except RBAC objects and admission policies.
func operands(c render.Config) []client.Object {
	var copies []client.Object
	for _, o := range slices.Concat(
		render.DatabaseObjects(c, render.Northbound), render.DatabaseObjects(c, render.Southbound), render.NorthdObjects(c),
		render.OpenVSwitchObjects(c), render.ControllerObjects(c), render.AgentObjects(c), render.DisruptionBudgets(c),
	) {
		copies = append(copies, o.DeepCopyObject().(client.Object))
	}
	return copies
}
