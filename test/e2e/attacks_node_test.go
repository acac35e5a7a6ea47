// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/hack/lab/config"
	"github.com/kiln-net/kiln/test/cluster"
)

const (
	// besideStolen is a namespace whose pods and policies must work whatever the stolen node writes.
	besideStolen = "e2e-beside-stolen"
	claimed      = "10.16.77.77" // in ovn-default
)

// The credentials of a kubelet must not allow harm to the networks of other nodes and their pods. The attacker has the kubeconfig of a worker's kubelet.
var _ = Describe("a stolen node", Ordered, ContinueOnFailure, func() {
	var stolen string
	var kubelet kubernetes.Interface
	var kubeletConfig *rest.Config
	var pods *pair

	BeforeAll(func(ctx SpecContext) {
		stolen = suite.Workers[1]
		raw, err := suite.Node.Exec(ctx, stolen, "cat", config.Kubelet.ConfigFile())
		Expect(err).NotTo(HaveOccurred())
		kubeletConfig, err = clientcmd.RESTConfigFromKubeConfig([]byte(raw))
		Expect(err).NotTo(HaveOccurred())
		kubelet, err = kubernetes.NewForConfig(kubeletConfig)
		Expect(err).NotTo(HaveOccurred())
		pods = makePair(ctx, besideStolen)
		DeferCleanup(func(ctx SpecContext) { deleteNamespace(ctx, besideStolen) }, NodeTimeout(4*time.Minute))
	}, NodeTimeout(4*time.Minute))

	// works checks that a new pod gets its address, and that a new policy isolates it.
	works := func(ctx context.Context, name string) {
		GinkgoHelper()
		pod, err := suite.Cluster.Run(ctx, cluster.Server(besideStolen, name, suite.Workers[0]))
		Expect(err).NotTo(HaveOccurred())
		connects(ctx, pods.from, pod, tcp, cluster.HTTPPort, true)
		applyPolicy(ctx, besideStolen, name, fmt.Sprintf("podSelector: {matchLabels: {app: %q}}\npolicyTypes: [Ingress]", name))
		connects(ctx, pods.from, pod, tcp, cluster.HTTPPort, false)
	}

	// addresses patches the addresses in the status of the stolen node, by its kubelet. The kubelet itself writes them again after a while.
	addresses := func(ctx context.Context, list ...corev1.NodeAddress) {
		GinkgoHelper()
		patch, err := json.Marshal(map[string]any{"status": map[string]any{"addresses": list}})
		Expect(err).NotTo(HaveOccurred())
		_, err = kubelet.CoreV1().Nodes().Patch(ctx, stolen, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		Expect(err).NotTo(HaveOccurred())
	}
	internal := func(texts ...string) []corev1.NodeAddress {
		list := make([]corev1.NodeAddress, 0, len(texts))
		for _, text := range texts {
			list = append(list, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: text})
		}
		return list
	}
	// unharmed checks the rows that addresses of nodes can change.
	toNodes := func(ctx context.Context) []string {
		GinkgoHelper()
		rows, err := suite.Cluster.NBList(ctx, "Logical_Router_Policy", "priority,match,nexthops")
		Expect(err).NotTo(HaveOccurred())
		var list []string
		for _, row := range rows {
			if fmt.Sprint(row["priority"]) == "30000" {
				list = append(list, fmt.Sprint(row["match"], " ", row["nexthops"]))
			}
		}
		return slices.Sorted(slices.Values(list))
	}

	It("makes no subnet invalid and attracts no traffic by the addresses in its status", func(ctx SpecContext) {
		before, err := suite.Cluster.CoreV1().Nodes().Get(ctx, stolen, metav1.GetOptions{})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func(ctx SpecContext) { addresses(ctx, before.Status.Addresses...) }, NodeTimeout(time.Minute))
		policies := toNodes(ctx)
		Expect(policies).NotTo(BeEmpty())
		other, err := suite.Cluster.CoreV1().Nodes().Get(ctx, suite.Workers[0], metav1.GetOptions{})
		Expect(err).NotTo(HaveOccurred())
		many := slices.Clone(before.Status.Addresses)
		for i := range 5000 {
			many = append(many, internal(fmt.Sprintf("10.16.%d.%d", 100+i/250, 1+i%250))...)
		}
		for _, attempt := range []struct {
			name string
			list []corev1.NodeAddress
		}{
			{"an address in ovn-default, added", append(slices.Clone(before.Status.Addresses), internal(claimed)...)},
			{"an address in ovn-default", internal(claimed)},
			{"an IPv6 address in ovn-default", internal("fd00:10:16::7777")},
			{"an address in join", internal("100.64.77.77")},
			{"an address of Services", internal("10.96.0.1")},
			{"an address of the outside", internal("8.8.8.8", "2001:4860:4860::8888")},
			{"the address of the outside host", internal(suite.Outside[0].String())},
			{"the addresses of another node", other.Status.Addresses},
			{"an address of a pod", internal(cluster.PodAddrs(pods.to)[0].String())},
			{"an external address", append(slices.Clone(before.Status.Addresses), corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: claimed})},
			{"5,000 addresses", many},
		} {
			By(attempt.name)
			addresses(ctx, attempt.list...)
			for _, name := range []string{kubeovnv1.DefaultSubnet, kubeovnv1.JoinSubnet} {
				subnet := &kubeovnv1.Subnet{}
				Consistently(func() (bool, error) {
					err := suite.Objects.Get(ctx, client.ObjectKey{Name: name}, subnet)
					return meta.IsStatusConditionTrue(subnet.Status.Conditions, kubeovnv1.ConditionValidated), err
				}).WithContext(ctx).WithTimeout(time.Second).Should(BeTrue(), "subnet %s: %v", name, subnet.Status.Conditions)
			}
			Expect(toNodes(ctx)).To(Equal(policies))
		}
		addresses(ctx, internal(claimed)...)
		works(ctx, "during")
		Eventually(warnings).WithContext(ctx).WithArguments("", stolen).WithTimeout(90 * time.Second).
			Should(ContainElement(ContainSubstring("is ignored, because the node joined with")))
	}, SpecTimeout(5*time.Minute))

	It("redirects nothing by the annotations of its Node", func(ctx SpecContext) {
		policies := toNodes(ctx)
		patch := fmt.Appendf(nil, `{"metadata": {"annotations": {%q: "100.64.0.1,fd00:100:64::1", %q: %q, %q: "node-x"}}}`,
			kubeovnv1.AnnotationIPAddress.Key(), kubeovnv1.AnnotationChassis.Key(), suite.Workers[0], kubeovnv1.AnnotationPortName.Key())
		_, err := kubelet.CoreV1().Nodes().Patch(ctx, stolen, types.MergePatchType, patch, metav1.PatchOptions{})
		Expect(err).NotTo(HaveOccurred())
		Consistently(toNodes).WithContext(ctx).WithTimeout(2 * time.Second).Should(Equal(policies))
		Eventually(func() (string, error) {
			node, err := suite.Cluster.CoreV1().Nodes().Get(ctx, stolen, metav1.GetOptions{})
			return node.Annotations[kubeovnv1.AnnotationChassis.Key()], err
		}).WithContext(ctx).WithTimeout(30 * time.Second).Should(Equal(stolen))
		works(ctx, "annotated")
	}, SpecTimeout(3*time.Minute))

	It("has no right to the objects that configure the network, or to other nodes", func(ctx SpecContext) {
		nodes := kubelet.CoreV1().Nodes()
		merge := func(name, patch string, subresources ...string) func() error {
			return func() error {
				_, err := nodes.Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...)
				return err
			}
		}
		custom, err := client.New(kubeletConfig, client.Options{Scheme: suite.Objects.Scheme()})
		Expect(err).NotTo(HaveOccurred())
		subnet := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: kubeovnv1.DefaultSubnet}}
		ip := &kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: kubeovnv1.NodePortName(stolen)}}
		list := map[string]func() error{
			"the addresses of another node":    merge(suite.Workers[0], `{"status": {"addresses": []}}`, "status"),
			"the annotations of another node":  merge(suite.Workers[0], `{"metadata": {"annotations": {"ovn.kubernetes.io/chassis": "x"}}}`),
			"a label of the control plane":     merge(stolen, `{"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}`),
			"a label that kubelets cannot set": merge(stolen, `{"metadata": {"labels": {"node-restriction.kubernetes.io/ovn": "master"}}}`),
			"a label of BGP speakers":          merge(stolen, fmt.Sprintf(`{"metadata": {"labels": {%q: "true"}}}`, "ovn.kubernetes.io/bgp")),
			"its own deletion":                 func() error { return nodes.Delete(ctx, stolen, metav1.DeleteOptions{}) },
			"another Node": func() error {
				_, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "e2e-invented"}}, metav1.CreateOptions{})
				return err
			},
			"the Lease of another kubelet": func() error {
				_, err := kubelet.CoordinationV1().Leases(corev1.NamespaceNodeLease).Update(ctx,
					&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: suite.Workers[0]}}, metav1.UpdateOptions{})
				return err
			},
			"the Lease of the controller": func() error {
				_, err := kubelet.CoordinationV1().Leases(cluster.Namespace).Update(ctx,
					&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "kube-ovn-controller"}}, metav1.UpdateOptions{})
				return err
			},
			"the record of its own addresses": func() error {
				return custom.Patch(ctx, ip, client.RawPatch(types.MergePatchType, []byte(`{"metadata": {"annotations": {"ovn.kubernetes.io/node_addresses": "8.8.8.8"}}}`)))
			},
			"the deletion of this record": func() error { return custom.Delete(ctx, ip) },
			"a record of another node": func() error {
				return custom.Create(ctx, &kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: "node-invented"}})
			},
			"a subnet": func() error {
				return custom.Patch(ctx, subnet, client.RawPatch(types.MergePatchType, []byte(`{"spec": {"private": true}}`)))
			},
			"the status of a subnet": func() error {
				return custom.Status().Patch(ctx, subnet, client.RawPatch(types.MergePatchType, []byte(`{"status": {"conditions": []}}`)))
			},
			"a pod on another node": func() error {
				_, err := kubelet.CoreV1().Pods(besideStolen).Create(ctx, cluster.Server(besideStolen, "elsewhere", suite.Workers[0]), metav1.CreateOptions{})
				return err
			},
			"an ordinary pod on its own node": func() error {
				_, err := kubelet.CoreV1().Pods(besideStolen).Create(ctx, cluster.Server(besideStolen, "here", stolen), metav1.CreateOptions{})
				return err
			},
			"the results of a pod on another node": func() error {
				_, err := kubelet.CoreV1().Pods(besideStolen).Patch(ctx, pods.from.Name, types.MergePatchType,
					[]byte(`{"metadata": {"annotations": {"ovn.kubernetes.io/ip_address": "10.16.0.9"}}}`), metav1.PatchOptions{}, "status")
				return err
			},
			"the results of a pod on its own node": func() error {
				_, err := kubelet.CoreV1().Pods(besideStolen).Patch(ctx, pods.to.Name, types.MergePatchType,
					[]byte(`{"metadata": {"annotations": {"ovn.kubernetes.io/ip_address": "10.16.0.9"}}}`), metav1.PatchOptions{}, "status")
				return err
			},
			"the keys of the databases": func() error {
				_, err := kubelet.CoreV1().Secrets(cluster.Namespace).List(ctx, metav1.ListOptions{})
				return err
			},
			"rights": func() error {
				_, err := kubelet.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
					ObjectMeta: metav1.ObjectMeta{Name: "e2e-stolen"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
				}, metav1.CreateOptions{})
				return err
			},
		}
		AddReportEntry("requests that were refused", len(list))
		for _, what := range slices.Sorted(maps.Keys(list)) {
			err := list[what]()
			Expect(apierrors.IsForbidden(err) || err != nil && strings.Contains(err.Error(), "is not allowed to modify")).To(BeTrue(), "%s: %v", what, err)
		}
	}, SpecTimeout(2*time.Minute))
})
