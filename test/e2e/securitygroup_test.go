// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"net/netip"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/test/cluster"
	"github.com/kiln-net/kiln/test/oracle"
)

var keyGroups = kubeovnv1.AnnotationGroups.Key()

// inGroups returns a pod that serves HTTP on ports 8080 and 5432 and names security groups.
func inGroups(name, groups string, worker int) *corev1.Pod {
	pod := cluster.Server("e2e-groups", name, suite.Workers[worker%len(suite.Workers)])
	pod.Annotations = map[string]string{keyGroups: groups}
	sql := *pod.Spec.Containers[0].DeepCopy()
	sql.Name, sql.Args, sql.ReadinessProbe = "sql", []string{"netexec", "--http-port=5432", "--udp-port=5432"}, nil
	pod.Spec.Containers = append(pod.Spec.Containers, sql)
	return pod
}

// connects waits until a pod can connect to a port of another pod in every family, or in none. In the first case, new connections
// must then be answered at once. In the second case, packets must not arrive although the server listens.
func connects(ctx context.Context, from, to *corev1.Pod, protocol corev1.Protocol, port int32, want bool) {
	GinkgoHelper()
	var targets []target
	for _, address := range cluster.PodAddrs(to) {
		targets = append(targets, target{strings.ToLower(string(protocol)), netip.AddrPortFrom(address, uint16(port))})
	}
	if !want {
		apartAt(ctx, from, to, targets...)
		return
	}
	Eventually(outcomesOf).WithContext(ctx).WithArguments(from, targets).WithTimeout(30*time.Second).Should(HaveEach(oracle.Connected), "%s to %v", from.Name, targets)
	if protocol != corev1.ProtocolTCP {
		return
	}
	for _, t := range targets {
		connectsAtOnce(ctx, fromPod(from), t.to)
	}
}

// pings returns the number of families in which a pod answers another pod's ping.
func pings(ctx context.Context, from, to *corev1.Pod) int {
	n := 0
	for _, address := range cluster.PodAddrs(to) {
		if _, err := suite.Cluster.Exec(ctx, from, "ping", "-c1", "-W1", address.String()); err == nil {
			n++
		}
	}
	return n
}

// nameGroups changes the security groups that a pod names.
func nameGroups(ctx context.Context, pod *corev1.Pod, groups string) {
	GinkgoHelper()
	base := pod.DeepCopy()
	pod.Annotations[keyGroups] = groups
	Expect(suite.Objects.Patch(ctx, pod, client.MergeFrom(base))).To(Succeed())
}

func groupObjects(names ...string) []client.Object {
	var objects []client.Object
	for _, name := range names {
		objects = append(objects, &kubeovnv1.SecurityGroup{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	return objects
}

// admitAll lets the namespaces of all specs name the groups of the sample.
func admitAll(ctx context.Context) {
	GinkgoHelper()
	for _, group := range groupObjects("database", "guarded", "shop-web") {
		admit(ctx, group.(*kubeovnv1.SecurityGroup), "default", "e2e-groups", "blue")
	}
}

// admit sets the namespaces whose pods may name a group.
func admit(ctx context.Context, group *kubeovnv1.SecurityGroup, namespaces ...kubeovnv1.AllowedNamespace) {
	GinkgoHelper()
	Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(group), group)).To(Succeed())
	base := group.DeepCopy()
	group.Spec.AllowedNamespaces = namespaces
	Expect(suite.Objects.Patch(ctx, group, client.MergeFrom(base))).To(Succeed())
}

var _ = Describe("security groups", Ordered, func() {
	const tcp, udp = corev1.ProtocolTCP, corev1.ProtocolUDP
	var web, database, replica, stranger *corev1.Pod

	BeforeAll(func(ctx SpecContext) {
		applySample(ctx, "securitygroup.yaml")
		makeNamespace(ctx, "e2e-groups")
		admitAll(ctx)
		DeferCleanup(func(ctx SpecContext) {
			removePods(ctx, "default", "shop-web")
			deleteNamespace(ctx, "e2e-groups")
			deleteObjects(ctx, groupObjects("database", "guarded", "shop-web")...)
		}, NodeTimeout(2*time.Minute))
		var err error
		web, err = suite.Cluster.WaitPod(ctx, "default", "shop-web", cluster.Ready)
		Expect(err).NotTo(HaveOccurred())
		for i, pod := range []**corev1.Pod{&database, &replica, &stranger} {
			*pod, err = suite.Cluster.Run(ctx, inGroups([]string{"database", "replica", "stranger"}[i], []string{"database", "database", ""}[i], i))
			Expect(err).NotTo(HaveOccurred(), "kubelet's probes pass")
		}
	}, NodeTimeout(3*time.Minute))

	It("allow the traffic of the sample", Label(smoke), func(ctx SpecContext) {
		By("tier 1, behind a group of tier 0 that passes")
		connects(ctx, stranger, web, tcp, 8080, true)
		connects(ctx, stranger, web, udp, 8081, false)
		connects(ctx, web, stranger, tcp, 5432, true)
		By("tier 0, by remote group")
		connects(ctx, web, database, tcp, 5432, true)
		connects(ctx, web, database, tcp, 8080, false)
		connects(ctx, stranger, database, tcp, 5432, false)
		connects(ctx, database, web, tcp, 8080, false)
		By("the same group")
		connects(ctx, replica, database, tcp, 8080, true)
		By("another protocol")
		Eventually(pings).WithContext(ctx).WithArguments(stranger, database).WithTimeout(20 * time.Second).Should(Equal(2))
		for _, address := range cluster.PodAddrs(web) {
			apartAt(ctx, stranger, web, target{icmp, netip.AddrPortFrom(address, 0)})
		}
	}, SpecTimeout(3*time.Minute))

	It("admit new pods of listed namespaces only", func(ctx SpecContext) {
		group := &kubeovnv1.SecurityGroup{ObjectMeta: metav1.ObjectMeta{Name: "database"}}
		admit(ctx, group, "default")
		DeferCleanup(func(ctx SpecContext) { admit(ctx, group, "default", "e2e-groups") }, NodeTimeout(time.Minute))
		intruder, err := suite.Cluster.Run(ctx, inGroups("intruder", "database", 1))
		Expect(err).NotTo(HaveOccurred())
		connects(ctx, intruder, database, tcp, 8080, false)
		connects(ctx, replica, database, tcp, 8080, true)
		admit(ctx, group, "default", "e2e-groups")
		connects(ctx, intruder, database, tcp, 8080, true)
	}, SpecTimeout(3*time.Minute))

	It("follow the annotation of a pod that runs", Label(smoke), func(ctx SpecContext) {
		connects(ctx, stranger, database, tcp, 5432, false)
		nameGroups(ctx, stranger, "shop-web") // a group of tier 1 only
		connects(ctx, stranger, database, tcp, 5432, true)
		connects(ctx, web, stranger, tcp, 8080, true)
		connects(ctx, web, stranger, tcp, 5432, false)
		nameGroups(ctx, stranger, kubeovnv1.DenyAllGroup)
		connects(ctx, stranger, database, tcp, 5432, false)
		connects(ctx, web, stranger, tcp, 8080, false)
		nameGroups(ctx, stranger, "")
		connects(ctx, web, stranger, tcp, 5432, true)
		connects(ctx, stranger, database, tcp, 5432, false)
	}, SpecTimeout(3*time.Minute))

	It("drop nothing that they allow before and after a change of tier", Label(timed), func(ctx SpecContext) {
		connects(ctx, stranger, web, tcp, 8080, true)
		watching := watchAllowed(ctx, stranger, web, 8080)
		sg := &kubeovnv1.SecurityGroup{ObjectMeta: metav1.ObjectMeta{Name: "shop-web"}}
		for i, tier := range []int{0, 1, 0, 1} {
			Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(sg), sg)).To(Succeed())
			base := sg.DeepCopy()
			sg.Spec.Tier = tier
			sg.Spec.IngressRules[0].PortRangeMax = 8080 + i + 1
			Expect(suite.Objects.Patch(ctx, sg, client.MergeFrom(base))).To(Succeed())
			Eventually(func(g Gomega) {
				g.Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(sg), sg)).To(Succeed())
				ready := meta.FindStatusCondition(sg.Status.Conditions, kubeovnv1.ConditionReady)
				g.Expect(ready).NotTo(BeNil())
				g.Expect(ready.Status).To(Equal(metav1.ConditionTrue))
				g.Expect(ready.ObservedGeneration).To(Equal(sg.Generation))
			}).WithContext(ctx).WithTimeout(20 * time.Second).Should(Succeed())
			connects(ctx, stranger, web, tcp, 8080, true)
			connects(ctx, stranger, web, udp, 8081, false)
		}
		watching(ctx)
	}, SpecTimeout(3*time.Minute))

	It("close pods that name a deleted group, and open them when it is back", func(ctx SpecContext) {
		connects(ctx, stranger, web, tcp, 8080, true)
		deleteObjects(ctx, groupObjects("shop-web")...)
		connects(ctx, stranger, web, tcp, 8080, false)
		connects(ctx, web, stranger, tcp, 8080, false)
		connects(ctx, replica, database, tcp, 8080, true) // other groups stay
		Eventually(warnings).WithContext(ctx).WithArguments("default", "shop-web").WithTimeout(20 * time.Second).
			Should(ContainElement(ContainSubstring("names shop-web, which does not exist")))
		applySample(ctx, "securitygroup.yaml")
		admitAll(ctx)
		connects(ctx, stranger, web, tcp, 8080, true)
		connects(ctx, web, stranger, tcp, 8080, true)
	}, SpecTimeout(3*time.Minute))

	It("hold in a custom VPC, where probes have a link of their own", func(ctx SpecContext) {
		makeNamespace(ctx, "blue")
		DeferCleanup(deleteNamespace, "blue")
		applyVpcs(ctx, "vpc.yaml")
		run := func(name, groups string, worker int) *corev1.Pod {
			pod := inGroups(name, groups, worker)
			pod.Namespace = "blue"
			running, err := suite.Cluster.Run(ctx, pod)
			Expect(err).NotTo(HaveOccurred(), "kubelet's probes pass")
			return running
		}
		tenant, asker := run("tenant", "database", 0), run("asker", "", 1)
		connects(ctx, asker, tenant, tcp, 5432, false)
		Eventually(pings).WithContext(ctx).WithArguments(asker, tenant).WithTimeout(20 * time.Second).Should(Equal(2))
		nameGroups(ctx, asker, "shop-web")
		connects(ctx, asker, tenant, tcp, 5432, true)
		connects(ctx, asker, tenant, tcp, 8080, false)
	}, SpecTimeout(5*time.Minute))

	It("close a pod from its first packet", func(ctx SpecContext) {
		closedFromTheStart(ctx, inGroups("late", "not-there", 0), inGroups("late-open", "", 0), stranger)
	}, SpecTimeout(2*time.Minute))
})
