// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/test/cluster"
)

const (
	attackerNamespace = "e2e-attacker"
	victimNamespace   = "e2e-victim"
	// bystanderNamespace has flows during the attacks; in victimNamespace pods start meanwhile.
	bystanderNamespace = "e2e-bystander"
)

// The right to create pods in one namespace must not allow harm to others. The attacker is a ServiceAccount with the stock role
// edit in its namespace.
var _ = Describe("a hostile tenant", Ordered, ContinueOnFailure, func() {
	var config *rest.Config
	var attacker kubernetes.Interface
	var others *pair
	var running *watch // flows of others, from the first attack to the last

	BeforeAll(func(ctx SpecContext) {
		for _, name := range []string{attackerNamespace, victimNamespace} {
			makeNamespace(ctx, name)
			DeferCleanup(func(ctx SpecContext) { deleteNamespace(ctx, name) }, NodeTimeout(4*time.Minute))
		}
		config = makeTenant(ctx, attackerNamespace)
		var err error
		attacker, err = kubernetes.NewForConfig(config)
		Expect(err).NotTo(HaveOccurred())
		others = makePair(ctx, bystanderNamespace)
		DeferCleanup(func(ctx SpecContext) { deleteNamespace(ctx, bystanderNamespace) }, NodeTimeout(4*time.Minute))
		running = startFlows(ctx, others)
	}, NodeTimeout(4*time.Minute))

	// gated creates a pod that stays unscheduled, so that the attacker knows its UID before the controller allocates an address.
	gated := func(ctx context.Context, name string, annotations map[string]string) *corev1.Pod {
		GinkgoHelper()
		pod := cluster.Server(attackerNamespace, name, "")
		pod.Annotations = annotations
		pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/wait"}}
		pod, err := attacker.CoreV1().Pods(attackerNamespace).Create(ctx, pod, metav1.CreateOptions{})
		Expect(err).NotTo(HaveOccurred())
		return pod
	}

	It("writes no results on its pods, and diverts no node's traffic", Label(smoke), func(ctx SpecContext) {
		victim := suite.Outside[0]
		pod := gated(ctx, "forger", nil)
		forged := kubeovnv1.PodNetwork{
			UID: pod.UID, Allocated: true, Routed: true, Addresses: []netip.Addr{victim}, MAC: []byte{2, 0, 0, 0, 0, 9},
			CIDRs: []netip.Prefix{netip.PrefixFrom(victim, 16).Masked()}, Gateways: []netip.Addr{victim.Next()},
			LogicalSwitch: kubeovnv1.DefaultSubnet, LogicalRouter: "x", NICType: kubeovnv1.PodNICTypeVeth, MTU: 1400,
		}.Annotations()
		pods := attacker.CoreV1().Pods(attackerNamespace)
		patch := func(annotations map[string]string) []byte {
			text, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
			Expect(err).NotTo(HaveOccurred())
			return text
		}
		for _, key := range append(slices.Sorted(maps.Keys(forged)), "") {
			annotations := forged
			if key != "" {
				annotations = map[string]string{key: forged[key]}
			}
			_, err := pods.Patch(ctx, pod.Name, types.MergePatchType, patch(annotations), metav1.PatchOptions{})
			name := kubeovnv1.Annotation(key[strings.Index(key, "/")+1:])
			if key == "" || slices.Contains(kubeovnv1.AnnotationsOf(kubeovnv1.OnPod, kubeovnv1.RoleResult), name) {
				Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%q by a patch: %v", key, err)
				Expect(err.Error()).To(ContainSubstring("only kube-ovn-controller changes these annotations"))
			}
			_, err = pods.Patch(ctx, pod.Name, types.MergePatchType, patch(annotations), metav1.PatchOptions{}, "status")
			Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%q by a patch of the status: %v", key, err)
			written, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
			Expect(err).NotTo(HaveOccurred())
			written.Annotations = forged
			_, err = pods.Update(ctx, written, metav1.UpdateOptions{})
			Expect(apierrors.IsForbidden(err)).To(BeTrue(), "an update: %v", err)
		}
		// Annotations that users may write before the allocation are requests. The controller refuses the address of another
		// network.
		_, err := pods.Patch(ctx, pod.Name, types.JSONPatchType, []byte(`[{"op": "remove", "path": "/spec/schedulingGates"}]`), metav1.PatchOptions{})
		Expect(err).NotTo(HaveOccurred())
		Eventually(warnings).WithContext(ctx).WithArguments(attackerNamespace, pod.Name).WithTimeout(30 * time.Second).
			Should(ContainElement(ContainSubstring(victim.String())))
		for _, n := range suite.Lab.Nodes() {
			out, err := suite.Node.Exec(ctx, n.Name, "ip", "route", "show", "table", "all", "proto", "76") // routes of probes (agent/probes)
			Expect(err).NotTo(HaveOccurred())
			Expect(out).NotTo(ContainSubstring(victim.String()+" "), "node %s", n.Name)
		}
	}, SpecTimeout(2*time.Minute))

	It("has no right to the objects that configure the network, as any user that it may impersonate", Label(smoke), func(ctx SpecContext) {
		attempts := forbidden(ctx, config, cluster.PodAddrs(others.to)[0])
		AddReportEntry("requests that were refused", len(attempts))
		for what, attempt := range attempts {
			err := attempt()
			Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%s: %v", what, err)
		}
	}, SpecTimeout(time.Minute))

	It("stops no write to the northbound database by annotations of pods", Label(timed), func(ctx SpecContext) {
		subnet := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "shared-by-tenants"}, Spec: kubeovnv1.SubnetSpec{
			CIDRBlock: "10.81.0.0/24", Vips: []string{"10.81.0.100"},
		}}
		Expect(suite.Objects.Create(ctx, subnet)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(suite.Objects.Delete(ctx, subnet)).To(Succeed()) }, NodeTimeout(time.Minute))
		hostile := []string{
			"a\x00b", "\x1b[2J", "\n", "a,b;c", `"`, "'", `" || 1 == 1 || ip4.src == "0.0.0.0/0`, "../../etc/passwd", strings.Repeat("x", 100_000), "-1", "0.0.0.0/0",
			suite.NodeAddresses[0], "10.96.0.1", "10.16.0.1", "100.64.0.1", "224.0.0.1", "127.0.0.1", "10.81.0.100", `[{"dst":"0.0.0.0/0","gw":"\u0000"}]`, "{",
			"dns_server={" + strings.Repeat("1.1.1.1,", 4000) + "}", // 17,000 addresses make ovn-controller abort, and 64 do not fit into an option
		}
		requests := kubeovnv1.AnnotationsOf(kubeovnv1.OnPod, kubeovnv1.RoleClaim, kubeovnv1.RoleRequest)
		_, stop := startPods(ctx, victimNamespace)
		unlimited, denied := asController(), 0
		for i, request := range requests {
			for j, value := range hostile {
				annotations := map[string]string{
					kubeovnv1.AnnotationLogicalSwitch.Key(): subnet.Name, kubeovnv1.AnnotationPortVips.Key(): "10.81.0.100",
					request.Key(): value,
				}
				pod := cluster.Server(attackerNamespace, fmt.Sprintf("h-%d-%d", i, j), "")
				pod.Annotations = annotations
				if j == i%len(hostile) { // one pod per annotation has a node, and so gets a port if its values allow it
					pod.Spec.NodeName = suite.Workers[i%2]
				} else {
					pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/wait"}}
				}
				_, err := attacker.CoreV1().Pods(attackerNamespace).Create(ctx, pod, metav1.CreateOptions{})
				if deniedAtApply(err) { // but not where the policy is missing, and not to a ReplicationController
					denied++
					_, err = unlimited.CoreV1().Pods(attackerNamespace).Create(ctx, pod, metav1.CreateOptions{})
				}
				Expect(err).NotTo(HaveOccurred(), "%s=%.20q", request, value)
			}
		}
		AddReportEntry("pods that the admission policy denied at first", denied)
		Expect(denied).To(BeNumerically(">", 0))
		unharmed(stop)
		removePods(ctx, attackerNamespace)
		oc := &v1alpha1.OVNCluster{}
		Expect(suite.Objects.Get(ctx, client.ObjectKey{Name: v1alpha1.OVNClusterName}, oc)).To(Succeed())
		Expect(meta.IsStatusConditionFalse(oc.Status.Conditions, v1alpha1.ConditionDegraded)).To(BeTrue(), "%v", oc.Status.Conditions)
	}, SpecTimeout(4*time.Minute))

	It("joins no VPC, private subnet or pool of others, and serves nothing there", Label(timed), func(ctx SpecContext) {
		vpc := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "victims"}, Spec: kubeovnv1.VpcSpec{Namespaces: []string{victimNamespace}}}
		inVpc := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "victims-vpc"}, Spec: kubeovnv1.SubnetSpec{Vpc: vpc.Name, CIDRBlock: "10.82.0.0/24"}}
		private := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "victims-private"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.83.0.0/24", Private: true}}
		common := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "common"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.84.0.0/24"}}
		pool := &kubeovnv1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "victims-pool"}, Spec: kubeovnv1.IPPoolSpec{
			Subnet: common.Name, Namespaces: []string{"e2e-nobody"}, IPs: []string{"10.84.0.100"},
		}}
		for _, o := range []client.Object{vpc, inVpc, private, common, pool} {
			Expect(suite.Objects.Create(ctx, o)).To(Succeed())
		}
		DeferCleanup(func(ctx SpecContext) { deleteObjects(ctx, pool, common, private, inVpc, vpc) }, NodeTimeout(2*time.Minute))
		service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "trap"}, Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "trap"}, Ports: []corev1.ServicePort{{Port: 5432}}, ExternalIPs: []string{"10.82.0.2"},
		}}
		service.Annotations = map[string]string{kubeovnv1.AnnotationLogicalRouter.Key(): vpc.Name}
		_, err := attacker.CoreV1().Services(attackerNamespace).Create(ctx, service, metav1.CreateOptions{})
		Expect(apierrors.IsForbidden(err)).To(BeTrue(), "external IPs: %v", err)
		service.Spec.ExternalIPs = nil
		_, err = attacker.CoreV1().Services(attackerNamespace).Create(ctx, service, metav1.CreateOptions{})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func(ctx SpecContext) error {
			return attacker.CoreV1().Services(attackerNamespace).Delete(ctx, service.Name, metav1.DeleteOptions{})
		})
		_, stop := startPods(ctx, victimNamespace)
		told := map[string]string{service.Name: "VPC victims does not list namespace " + attackerNamespace}
		for i, attempt := range []struct {
			key        kubeovnv1.Annotation
			value, why string
		}{
			{kubeovnv1.AnnotationLogicalSwitch, inVpc.Name, "VPC victims does not list namespace"},
			{kubeovnv1.AnnotationLogicalSwitch, private.Name, "subnet victims-private is private"},
			{kubeovnv1.AnnotationIPPool, pool.Name, "IPPool victims-pool does not list namespace"},
		} {
			pod := cluster.Server(attackerNamespace, fmt.Sprint("intruder-", i), suite.Workers[0])
			pod.Annotations = map[string]string{attempt.key.Key(): attempt.value}
			_, err := attacker.CoreV1().Pods(attackerNamespace).Create(ctx, pod, metav1.CreateOptions{})
			Expect(err).NotTo(HaveOccurred())
			told[pod.Name] = attempt.why
		}
		for name, why := range told {
			Eventually(warnings).WithContext(ctx).WithArguments(attackerNamespace, name).WithTimeout(20 * time.Second).Should(ContainElement(ContainSubstring(why)))
		}
		list, err := suite.Cluster.CoreV1().Pods(attackerNamespace).List(ctx, metav1.ListOptions{})
		Expect(err).NotTo(HaveOccurred())
		for i := range list.Items {
			Expect(allocated(&list.Items[i])).To(BeFalse(), "pod %s", list.Items[i].Name)
		}
		unharmed(stop)
		removePods(ctx, attackerNamespace)
	}, SpecTimeout(3*time.Minute))

	It("floods the API server with pods and Services, and delays no other tenant", Label(timed), func(ctx SpecContext) {
		pods, services := 500, 150
		if os.Getenv("ATTACKS") == "all" {
			pods, services = 5000, 2000
		}
		_, stop := startPods(ctx, victimNamespace)
		var flood errgroup.Group
		flood.SetLimit(8)
		for i := range pods {
			flood.Go(func() error {
				pod := cluster.Server(attackerNamespace, fmt.Sprint("flood-", i), "")
				pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/wait"}}
				_, err := attacker.CoreV1().Pods(attackerNamespace).Create(ctx, pod, metav1.CreateOptions{})
				return err
			})
		}
		for i := range services {
			flood.Go(func() error {
				_, err := attacker.CoreV1().Services(attackerNamespace).Create(ctx, &corev1.Service{
					ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("flood-", i)},
					Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "none"}, Ports: []corev1.ServicePort{{Port: 80}}},
				}, metav1.CreateOptions{})
				return err
			})
		}
		Expect(flood.Wait()).To(Succeed())
		unharmed(stop)
		_, stop = startPods(ctx, victimNamespace)
		var ebb errgroup.Group // one request that deletes thousands of pods exceeds the API server's limit of a minute
		ebb.SetLimit(8)
		for i := range pods {
			ebb.Go(func() error {
				return attacker.CoreV1().Pods(attackerNamespace).Delete(ctx, fmt.Sprint("flood-", i), metav1.DeleteOptions{})
			})
		}
		for i := range services {
			ebb.Go(func() error {
				return attacker.CoreV1().Services(attackerNamespace).Delete(ctx, fmt.Sprint("flood-", i), metav1.DeleteOptions{})
			})
		}
		Expect(ebb.Wait()).To(Succeed())
		unharmed(stop)
	}, SpecTimeout(10*time.Minute))

	It("floods the ports of a node, whose daemons answer its agent and others", Label(timed), func(ctx SpecContext) {
		pod, err := suite.Cluster.Run(ctx, cluster.Server(attackerNamespace, "requests", suite.Workers[0]))
		Expect(err).NotTo(HaveOccurred())
		var node corev1.Node
		Expect(suite.Objects.Get(ctx, types.NamespacedName{Name: suite.Workers[1]}, &node)).To(Succeed())
		address := node.Status.Addresses[slices.IndexFunc(node.Status.Addresses, func(a corev1.NodeAddress) bool { return a.Type == corev1.NodeInternalIP })].Address
		url := "http://" + net.JoinHostPort(address, "10672") + "/node"
		before := processes(ctx)
		_, stop := startPods(ctx, victimNamespace)
		_, err = suite.Cluster.Exec(ctx, pod, "bash", "-c", `timeout 15 bash -c 'for i in $(seq 128); do (while :; do curl -s -o /dev/null --max-time 2 "$0"; done) & done; wait' "$0"; pkill curl; true`, url)
		Expect(err).NotTo(HaveOccurred())
		report, err := suite.Node.Exec(ctx, suite.Workers[0], "curl", "-sf", "--max-time", "15", url) // another source
		Expect(err).NotTo(HaveOccurred())
		Expect(report).To(And(ContainSubstring(`"ports":`), Not(ContainSubstring("openVSwitch")), Not(ContainSubstring("ovnController"))))
		unharmed(stop)
		Expect(suite.Objects.Get(ctx, types.NamespacedName{Name: node.Name}, &node)).To(Succeed())
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeNetworkUnavailable {
				Expect(c.Status).To(Equal(corev1.ConditionFalse), c.Message)
			}
		}
		Expect(processes(ctx)).To(Equal(before), "containers that restarted")
	}, SpecTimeout(4*time.Minute))

	It("has cost running connections of others nothing", Label(timed), func(ctx SpecContext) {
		whole := running.end(ctx)
		Expect(whole.ofTCP().losses()).To(BeEmpty())
		Expect(whole.withinNode().losses()).To(BeEmpty()) // flows between nodes lose packets whenever a pod starts there (watch)
	}, SpecTimeout(2*time.Minute))
})

// makeTenant creates a ServiceAccount with the role edit in a namespace, and returns a client configuration with its token.
func makeTenant(ctx context.Context, namespace string) *rest.Config {
	GinkgoHelper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "tenant"}}
	Expect(suite.Objects.Create(ctx, account)).To(Succeed())
	Expect(suite.Objects.Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: account.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: account.Name}},
	})).To(Succeed())
	token, err := suite.Cluster.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account.Name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	config := rest.AnonymousClientConfig(suite.Cluster.Config)
	config.BearerToken = token.Status.Token
	config.QPS, config.Burst = 1000, 1000
	clients, err := kubernetes.NewForConfig(config)
	Expect(err).NotTo(HaveOccurred())
	Eventually(func() error { // the API server's authorizer learns of the binding by a watch
		_, err := clients.CoreV1().Pods(namespace).Create(ctx, cluster.Server(namespace, "rights", ""), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}).WithContext(ctx).WithTimeout(20 * time.Second).Should(Succeed())
	return config
}

// busyAddress is how long a pod waits for its address while eight clients write to the API server as fast as they can, on the
// machine that the tables of docs/ were measured on. On an idle machine it is 50 ms. The API server, which shares two CPUs with all
// other processes, causes the difference.
const busyAddress = 250 * time.Millisecond

// unharmed stops startPods. It expects that all its pods started, and that their median time to an address is as usual.
func unharmed(stop func() startedPods) {
	GinkgoHelper()
	pods := stop()
	AddReportEntry("pods of others meanwhile", pods.String())
	Expect(pods.failures).To(BeEmpty())
	Expect(pods.addresses).NotTo(BeEmpty())
	atMost(median(pods.addresses), bound(busyAddress), "address of a pod of others, p50")
}
