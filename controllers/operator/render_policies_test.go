// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/podlabel"
)

// mayPatchPods lets kube-ovn-controller and ovn-northd patch pods, as an administrator could: the policies limit that as well.
func mayPatchPods() []client.Object {
	named := metav1.ObjectMeta{Name: "components-patch-pods"}
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: named, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: named.Name}}
	for _, account := range []string{render.ControllerName, "ovn-central"} {
		binding.Subjects = append(binding.Subjects, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: testNamespace, Name: account})
	}
	return []client.Object{
		&rbacv1.ClusterRole{ObjectMeta: named, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"patch"}}}},
		binding,
	}
}

// TestPolicies tries writes of users and of stolen tokens on a real API server with the rendered roles and policies. Each write uses a
// token of its user or ServiceAccount. Writes are dry runs, which pass through admission.
func TestPolicies(t *testing.T) {
	w := newTenancy(t, render.Config{Namespace: testNamespace}, mayPatchPods()...)
	results := strings.Join(forged(kubeovnv1.AnnotationsOf(kubeovnv1.OnPod, kubeovnv1.RoleResult, kubeovnv1.RoleClaim)...), ",")
	w.try(t, []trial{
		{"a request before the allocation", asTenant, w.patch("web", annotate("ip_address", "10.16.0.9")), ""},
		{"another network before the allocation", asTenant, w.patch("web", annotate("logical_switch", "blue")), ""},
		{"an annotation of others", asTenant, w.patch("db", `{"metadata":{"annotations":{"example.com/a":"b"}}}`), ""},
		{"a request that stays one", asTenant, w.patch("db", annotate("security_groups", "a")), ""},
		{"a label", asTenant, w.patch("db", `{"metadata":{"labels":{"a":"b"}}}`), ""},
		{"an exported manifest", asTenant, w.create(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "restored", Annotations: map[string]string{
				kubeovnv1.AnnotationAllocated.Key(): "true", kubeovnv1.AnnotationPodUID.Key(): "another", kubeovnv1.AnnotationIPAddress.Key(): "10.16.0.9",
			}}, Spec: containers(),
		}), ""},
		{"all results at once", asTenant, w.patch("web", `{"metadata":{"annotations":{`+results+`}}}`), "{pod_uid,allocated,routed,"},
		{"the address after the allocation", asTenant, w.patch("db", annotate("ip_address", "10.16.0.9")), "whose network is allocated"},
		{"an address that is removed", asTenant, w.patch("db", `{"metadata":{"annotations":{"ovn.kubernetes.io/ip_address":null}}}`), "whose network is allocated"},
		{"all annotations removed", asTenant, w.patch("db", `{"metadata":{"annotations":null}}`), "{pod_uid,allocated,routed,"},
		{"an empty result", asTenant, w.patch("web", annotate("routed", "")), "{pod_uid,allocated,routed,"},
		{"the machine after the allocation", asTenant, w.patch("db", annotate("virtualmachine", "vm")), "whose network is allocated"},
		{"a result by an update", asTenant, w.update("web", kubeovnv1.AnnotationCIDR.Key()), "{pod_uid,allocated,routed,"},
		{"a result through status", asTenant, w.patchStatus("web", annotate("allocated", "true")), "cannot patch resource \"pods/status\""},
		{"a result by their own account", asOwnAccount, w.patch("web", annotate("allocated", "true")), "{pod_uid,allocated,routed,"},
		{"a result by an account of the controller's name", asImitation, w.patch("web", annotate("pod_uid", "x")), "{pod_uid,allocated,routed,"},
		{"a result through status by an account that may write status", asScheduler, w.patchStatus("web", annotate("allocated", "true")), "{pod_uid,allocated,routed,"},
		{"a result by a Binding", asScheduler, w.bind("web", kubeovnv1.AnnotationAllocated.Key()), "Remove them from the Binding"},
		{"an annotation by a Binding", asScheduler, w.bind("web", "example.com/a"), ""},
		{"a request for another network", asTenant, w.patch("db", annotateFor(secondNetwork, "logical_switch", "blue")), ""},
		{"the address of another network before its allocation", asTenant, w.patch("db", annotateFor(secondNetwork, "ip_address", "10.17.0.9")), ""},
		{"an annotation of others with the name of a result", asTenant, w.patch("db", `{"metadata":{"annotations":{"example.com/gateway":"a"}}}`), ""},
		{"the UID of another network", asTenant, w.patch("web", annotateFor(secondNetwork, "pod_uid", "x")), "{pod_uid,allocated,routed,"},
		{"the gateway of a network without a logical switch", asTenant, w.patch("web", annotateFor("macvlan.default", "gateway", "10.17.0.1")), "{pod_uid,allocated,routed,"},
		{"the address of another network after its allocation", asTenant, w.patch("two", annotateFor(secondNetwork, "ip_address", "10.17.0.9")), "whose network is allocated"},
		{"the switch of another network after its allocation, removed", asTenant,
			w.patch("two", `{"metadata":{"annotations":{"`+kubeovnv1.AnnotationLogicalSwitch.For(secondNetwork)+`":null}}}`), "whose network is allocated"},
		{"the first network while only another one is allocated", asTenant, w.patch("two", annotate("ip_address", "10.16.0.9")), ""},
		{"a result of another network by a Binding", asScheduler, w.bind("web", kubeovnv1.AnnotationAllocated.For(secondNetwork)), "Remove them from the Binding"},
		{"results of another network", asController, w.patchStatus("web", annotateFor(secondNetwork, "cidr", "10.17.0.0/16")), ""},
		{"a request for another network", asController, w.patchStatus("web", annotateFor(secondNetwork, "security_groups", "a")), "may not change these annotations"},
		{"results by an administrator", asAdmin, w.patch("web", `{"metadata":{"annotations":{`+results+`}}}`), ""},

		{"the kubelet's status", asKubelet, w.patchStatus("db", `{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`), ""},
		{"another plugin's annotation through status", asKubelet, w.patchStatus("db", `{"metadata":{"annotations":{"k8s.v1.cni.cncf.io/network-status":"[]"}}}`), ""},
		{"a result by a kubelet", asKubelet, w.patchStatus("db", annotate("gateway", "10.16.0.9")), "{pod_uid,allocated,routed,"},

		{"its patch", asController, w.patchStatus("web", `{"metadata":{"annotations":{`+results+`}}}`), ""},
		{"results that it removes", asController, w.patchStatus("db", `{"metadata":{"annotations":{"ovn.kubernetes.io/ip_address":null}}}`), ""},
		{"its patch through pods", asController, w.patch("web", `{"metadata":{"annotations":{`+results+`}}}`), ""},
		{"an image", asController, w.patch("web", `{"spec":{"containers":[{"name":"c","image":"other"}]}}`), "and nothing else of them"},
		{"a status", asController, w.patchStatus("web", `{"status":{"phase":"Failed"}}`), "and nothing else of them"},
		{"a finalizer", asController, w.patchStatus("web", `{"metadata":{"finalizers":["example.com/a"]}}`), "and nothing else of them"},
		{"a request", asController, w.patchStatus("web", annotate("security_groups", "")), "may not change these annotations"},
		{"a label of another pod", asController, w.patchStatus("web", label(podlabel.NorthboundWritten, "a")), "of its own pod only"},
		{"its own label", asController, w.patchStatus("kube-system/controller-0", label(podlabel.NorthboundWritten, "a")), ""},
		{"another label of its own", asController, w.patchStatus("kube-system/controller-0", label("app", "a")), "and only kubeovn.io/northbound-written"},
		{"its own condition", asController, w.patchStatus("kube-system/controller-0", podCondition(v1alpha1.PodConditionNorthbound)), ""},
		{"its condition on another pod", asController, w.patchStatus("kube-system/northd-0", podCondition(v1alpha1.PodConditionNorthbound)), "and nothing else of them"},
		{"whether its own pod is ready", asController, w.patchStatus("kube-system/controller-0", podCondition(corev1.PodReady)), "and nothing else of them"},
		{"its own phase", asController, w.patchStatus("kube-system/controller-0", `{"status":{"phase":"Failed"}}`), "and nothing else of them"},
		{"annotations of a node", asController, w.patchNode("node-2", annotate("ip_address", "100.64.0.9")), ""},
		{"requests to a node to end connections", asController, w.patchNode("node-2", annotate("flush_connections", "[]")), ""},
		{"a taint", asController, w.patchNode("node-2", `{"spec":{"taints":[{"key":"a","effect":"NoExecute"}]}}`), "of nodes and namespaces"},
		{"a node's label", asController, w.patchNode("node-2", label("a", "b")), "of nodes and namespaces"},
		{"annotations of a namespace", asController, w.patchNamespace(annotate("logical_switch", "blue")), ""},
		{"a namespace's label", asController, w.patchNamespace(label("pod-security.kubernetes.io/enforce", "privileged")), "of nodes and namespaces"},

		{"its own labels", asNorthd, w.patchStatus("kube-system/northd-0", label(podlabel.NorthdLeader, "true")), ""},
		{"its own label through pods", asNorthd, w.patch("kube-system/northd-0", label(podlabel.NorthdMembers, "a")), ""},
		{"a label of a database", asNorthd, w.patchStatus("kube-system/northd-0", label(podlabel.NorthboundLeader, "true")), ""},
		{"its own app", asNorthd, w.patchStatus("kube-system/northd-0", label("app", "true")), "of its own pod only"},
		{"a label of another pod", asNorthd, w.patchStatus("kube-system/controller-0", label(podlabel.NorthdLeader, "true")), "of its own pod only"},
		{"an image", asNorthd, w.patch("kube-system/controller-0", `{"spec":{"containers":[{"name":"c","image":"other"}]}}`), "and nothing else of them"},
		{"a condition of its own", asNorthd, w.patchStatus("kube-system/northd-0", podCondition(v1alpha1.PodConditionNorthbound)), "and nothing else of them"},
		{"its own annotation", asNorthd, w.patchStatus("kube-system/northd-0", annotate("security_groups", "a")), "may not change these annotations"},
		{"its own condition", asSpeaker, w.patchStatus("kube-system/speaker-0", podCondition(v1alpha1.PodConditionPeers)), ""},
		{"another condition", asSpeaker, w.patchStatus("kube-system/speaker-0", podCondition(v1alpha1.PodConditionNorthbound)), "and nothing else of pods"},
		{"the condition of another pod", asSpeaker, w.patchStatus("kube-system/controller-0", podCondition(v1alpha1.PodConditionPeers)), "and nothing else of pods"},
		{"an annotation", asSpeaker, w.patchStatus("kube-system/speaker-0", annotate("security_groups", "a")), "may not change these annotations"},
		{"a pod of a tenant", asNorthd, w.patchStatus("web", label(podlabel.NorthdLeader, "true")), "cannot patch resource \"pods/status\""},

		{"its condition", asAgent, w.nodeCondition("node-1", string(corev1.NodeNetworkUnavailable)), ""},
		{"that kube-proxy is there", asAgent, w.nodeCondition("node-1", string(v1alpha1.NodeConditionKubeProxy)), ""},
		{"whether the node is ready", asAgent, w.nodeCondition("node-1", string(corev1.NodeReady)), "and nothing else of it"},
		{"addresses", asAgent, w.patchNodeStatus("node-1", `{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.9"}]}}`), "and nothing else of it"},
		{"where exec and logs go", asAgent, w.patchNodeStatus("node-1", `{"status":{"daemonEndpoints":{"kubeletEndpoint":{"Port":1}}}}`), "and nothing else of it"},
		{"a label through status", asAgent, w.patchNodeStatus("node-1", label("node-role.kubernetes.io/control-plane", "")), "and nothing else of it"},
		{"a report about a ProviderNetwork", asAgent, w.patchNodeStatus("node-1", `{"metadata":{"labels":{"net1.provider-network.kubernetes.io/ready":"true",`+
			`"net1.provider-network.kubernetes.io/mtu":"1500"},"annotations":{"net2.provider-network.kubernetes.io/err_mesg":"Error: a",`+
			`"net1.provider-network.kubernetes.io/silent_gateways":"office/10.30.0.254"}}}`), ""},
		{"a report of ended connections", asAgent, w.patchNodeStatus("node-1", annotate("flushed_connections", "a-1,b-2")), ""},
		{"a report of ended connections of another node", asAgent, w.patchNodeStatus("node-2", annotate("flushed_connections", "a-1")), "of its own node only"},
		{"a request to end connections", asAgent, w.patchNodeStatus("node-1", annotate("flush_connections", "[]")), "and nothing else of it"},
		{"which nodes a ProviderNetwork leaves out", asAgent, w.patchNodeStatus("node-1",
			`{"metadata":{"labels":{"net1.provider-network.kubernetes.io/exclude":"true"}}}`), "and nothing else of it"},
		{"a report about another node", asAgent, w.patchNodeStatus("node-2", `{"metadata":{"labels":{"net1.provider-network.kubernetes.io/ready":"true"}}}`), "of its own node only"},
		{"an annotation through status", asAgent, w.patchNodeStatus("node-1", annotate("chassis", "node-2")), "and nothing else of it"},
		{"the condition of another node", asAgent, w.nodeCondition("node-2", string(corev1.NodeNetworkUnavailable)), "of its own node only"},
		{"its Lease", asAgent, w.create(lease("gateway-node-1")), ""},
		{"the Lease of another node", asAgent, w.create(lease("gateway-node-2")), "of its own node only"},
		{"the Lease of the operator", asAgent, w.create(lease("kiln-operator")), "of its own node only"},

		{"a certificate of a chassis", asVSwitch, w.create(request(t, render.ChassisSigner)), ""},
		{"a certificate of a user", asVSwitch, w.create(request(t, certificatesv1.KubeAPIServerClientSignerName)), "of the signer kubeovn.io/chassis only"},
	})
}

// TestTheSampleForMirrorPods tests another sample policy of docs/operations/security.md.
func TestTheSampleForMirrorPods(t *testing.T) {
	w := newTenancy(t, render.Config{Namespace: testNamespace})
	w.applySample(t, "policy_mirror_pods.yaml")
	pod := func(namespace string, annotations map[string]string) write {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "static", Annotations: annotations}, Spec: containers()}
		p.Spec.NodeName = "node-1"
		return w.create(p)
	}
	mirror := map[string]string{corev1.MirrorPodAnnotationKey: "hash"}
	w.denied(t, asKubelet, pod(w.namespace, mirror))
	w.try(t, []trial{
		{"a mirror pod of a tenant's namespace", asKubelet, pod(w.namespace, mirror), "for the namespace kube-system only"},
		{"a mirror pod of kube-system", asKubelet, pod(metav1.NamespaceSystem, mirror), ""},
		{"another pod", asTenant, pod(w.namespace, map[string]string{"a": "b"}), ""},
		{"a pod without annotations", asTenant, pod(w.namespace, nil), ""},
	})
}

// applySample creates the policy and binding of a file in config/samples.
func (w *tenancy) applySample(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "config", "samples", file))
	if err != nil {
		t.Fatal(err)
	}
	for document := range strings.SplitSeq(string(text), "---\n") {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), object); err != nil {
			t.Fatal(err)
		}
		w.make(t, object)
	}
}

// TestTheSampleForNorthGateways tests the sample policy of docs/operations/security.md.
func TestTheSampleForNorthGateways(t *testing.T) {
	w := newTenancy(t, render.Config{Namespace: testNamespace})
	w.applySample(t, "policy_north_gateway.yaml")
	pod := func(annotations ...string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "north", Annotations: map[string]string{}}, Spec: containers()}
		for _, a := range annotations {
			p.Annotations[kubeovnv1.AnnotationNorthGateway.Key()] = a
		}
		return p
	}
	const denied = "needs the label kubeovn.io/north-gateway"
	w.denied(t, asTenant, w.create(pod("10.16.0.9")))
	w.try(t, []trial{
		{"a pod without a next hop", asTenant, w.create(pod()), ""},
		{"a pod with a next hop", asTenant, w.create(pod("10.16.0.9")), denied},
		{"a next hop of a pod that runs", asTenant, w.patch("web", annotate("north_gateway", "10.16.0.9")), denied},
		{"another annotation", asTenant, w.patch("web", annotate("security_groups", "b")), ""},
		{"the label", asTenant, w.patchNamespace(label("kubeovn.io/north-gateway", "allowed")), "cannot patch resource \"namespaces\""},
	})
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}
	allow := client.RawPatch(types.MergePatchType, []byte(label("kubeovn.io/north-gateway", "allowed")))
	if err := w.admin.Patch(t.Context(), namespace, allow); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(soon); ; <-time.After(often) {
		err := w.create(pod("10.16.0.9"))(t.Context(), client.NewDryRunClient(w.clients[asTenant]))
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("a namespace with the label: %v", err)
		}
	}
}
