// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/test/cluster"
)

// forbidden returns requests that a tenant has no right to, keyed by their effect. victim is the address of another namespace's
// pod.
func forbidden(ctx context.Context, config *rest.Config, victim netip.Addr) map[string]func() error {
	GinkgoHelper()
	as := func(user string, groups ...string) kubernetes.Interface {
		GinkgoHelper()
		other := rest.CopyConfig(config)
		other.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups}
		clients, err := kubernetes.NewForConfig(other)
		Expect(err).NotTo(HaveOccurred())
		return clients
	}
	tenant, err := kubernetes.NewForConfig(config)
	Expect(err).NotTo(HaveOccurred())
	pods := tenant.CoreV1().Pods(attackerNamespace)
	pod, err := pods.Create(ctx, cluster.Server(attackerNamespace, "own", suite.Workers[0]), metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	service, err := tenant.CoreV1().Services(attackerNamespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "own"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	result := fmt.Appendf(nil, `{"metadata": {"annotations": {%q: "00000000-0000-0000-0000-000000000000"}}}`, kubeovnv1.AnnotationPodUID.Key())
	list := map[string]func() error{
		"another's pod as an endpoint of a Service": func() error {
			_, err := tenant.DiscoveryV1().EndpointSlices(attackerNamespace).Create(ctx, &discoveryv1.EndpointSlice{
				ObjectMeta:  metav1.ObjectMeta{Name: "own-0", Labels: map[string]string{discoveryv1.LabelServiceName: service.Name}},
				AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{victim.String()}}},
			}, metav1.CreateOptions{})
			return err
		},
		"another's pod as an endpoint, by the older kind": func() error {
			_, err := tenant.CoreV1().Endpoints(attackerNamespace).Create(ctx, &corev1.Endpoints{ //nolint:staticcheck // tenants try it
				ObjectMeta: metav1.ObjectMeta{Name: service.Name},
				Subsets:    []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: victim.String()}}}}, //nolint:staticcheck // see above
			}, metav1.CreateOptions{})
			return err
		},
		"an external address by the status of a Service": func() error {
			_, err := tenant.CoreV1().Services(attackerNamespace).Patch(ctx, service.Name, types.MergePatchType,
				[]byte(`{"status": {"loadBalancer": {"ingress": [{"ip": "172.30.0.11"}]}}}`), metav1.PatchOptions{}, "status")
			return err
		},
		"results by binding a pod": func() error {
			return pods.Bind(ctx, &corev1.Binding{
				ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Annotations: map[string]string{kubeovnv1.AnnotationPodUID.Key(): "1"}}, Target: corev1.ObjectReference{Kind: "Node", Name: suite.Workers[0]},
			}, metav1.CreateOptions{})
		},
		"a subnet for its namespace": func() error {
			_, err := tenant.CoreV1().Namespaces().Patch(ctx, attackerNamespace, types.MergePatchType,
				fmt.Appendf(nil, `{"metadata": {"annotations": {%q: "join"}}}`, kubeovnv1.AnnotationLogicalSwitch.Key()), metav1.PatchOptions{})
			return err
		},
		"the addresses of a node": func() error {
			_, err := tenant.CoreV1().Nodes().Patch(ctx, suite.Workers[0], types.MergePatchType,
				fmt.Appendf(nil, `{"metadata": {"annotations": {%q: "10.0.0.1"}}}`, kubeovnv1.AnnotationIPAddress.Key()), metav1.PatchOptions{})
			return err
		},
		"the place of the leading controller": func() error {
			_, err := tenant.CoordinationV1().Leases(metav1.NamespaceSystem).Update(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "kube-ovn-controller"}}, metav1.UpdateOptions{})
			return err
		},
		"the keys of the databases": func() error {
			_, err := tenant.CoreV1().Secrets(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{})
			return err
		},
	}
	for _, sub := range []string{"", "status", "ephemeralcontainers", "resize"} {
		for who, clients := range map[string]kubernetes.Interface{
			"itself":                           tenant,
			"another account of its namespace": as("system:serviceaccount:" + attackerNamespace + ":default"),
			"the controller":                   as("system:serviceaccount:kube-system:kube-ovn-controller"),
			"an administrator":                 as("admin", "system:masters"),
		} {
			list[strings.TrimSpace("results on pods/"+sub)+" as "+who] = func() error {
				var subresources []string
				if sub != "" {
					subresources = []string{sub}
				}
				_, err := clients.CoreV1().Pods(attackerNamespace).Patch(ctx, pod.Name, types.MergePatchType, result, metav1.PatchOptions{}, subresources...)
				return err
			}
		}
	}
	kinds, err := suite.Cluster.Discovery().ServerPreferredResources()
	Expect(err).NotTo(HaveOccurred())
	for _, group := range kinds {
		if !strings.HasPrefix(group.GroupVersion, kubeovnv1.GroupVersion.Group+"/") {
			continue
		}
		for _, kind := range group.APIResources {
			path := []string{"/apis", group.GroupVersion, kind.Name}
			if kind.Namespaced {
				path = []string{"/apis", group.GroupVersion, "namespaces", attackerNamespace, kind.Name}
			}
			for verb, under := range map[string][]string{http.MethodPost: path, http.MethodPut: append(path, "any"), http.MethodPatch: append(path, "any"), http.MethodDelete: append(path, "any")} {
				list[verb+" "+strings.Join(under, "/")] = func() error {
					request := tenant.Discovery().RESTClient().Verb(verb).AbsPath(under...).Param("dryRun", metav1.DryRunAll)
					if verb == http.MethodPatch {
						request.SetHeader("Content-Type", string(types.MergePatchType))
					}
					return request.Body([]byte("{}")).Do(ctx).Error()
				}
			}
		}
	}
	return list
}
