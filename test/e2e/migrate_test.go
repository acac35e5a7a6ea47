// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/envcheck"
	"github.com/kiln-net/kiln/test/cluster"
)

const (
	// migrate is the label of the specs of `make migrate`.
	migrate          = "migrate"
	migrateNamespace = "e2e-migrate"
	migratePage      = "../../docs/operations/migrate.md"
)

// remains leaves on a node what Kube-OVN leaves: the plugin and its configuration, files of databases, the interface ovn0 with an address and a route
// (a veth, because no Open vSwitch runs), sockets, and rules if the node has iptables.
const remains = `set -e
mkdir -p /etc/cni/net.d /opt/cni/bin /etc/origin/ovn /etc/origin/openvswitch /etc/openvswitch /run/openvswitch /run/ovn
echo '{"cniVersion": "0.3.1", "name": "kube-ovn", "plugins": [{"type": "kube-ovn", "server_socket": "/run/openvswitch/kube-ovn-daemon.sock"}]}' > /etc/cni/net.d/01-kube-ovn.conflist
printf '#!/bin/sh\nexit 1\n' > /opt/cni/bin/kube-ovn
chmod +x /opt/cni/bin/kube-ovn
echo 'OVSDB CLUSTER 1 of another cluster' > /etc/origin/ovn/ovnnb_db.db
echo 'OVSDB CLUSTER 1 of another cluster' > /etc/origin/ovn/ovnsb_db.db
echo 'OVSDB JSON of another cluster' > /etc/openvswitch/conf.db
touch /run/openvswitch/kube-ovn-daemon.sock /run/openvswitch/db.sock /run/ovn/ovn-controller.pid
ip link add ovn0 type veth peer name ovn0-peer
ip address add 100.64.0.99/16 dev ovn0
ip link set ovn0 up
ip route add 10.20.0.0/16 via 100.64.0.1 dev ovn0
if command -v iptables >/dev/null; then iptables -t nat -N OVN-POSTROUTING; iptables -t nat -A POSTROUTING -j OVN-POSTROUTING; fi`

// cleanUp returns the commands of the page for a node.
func cleanUp() string {
	GinkgoHelper()
	page, err := os.ReadFile(migratePage)
	Expect(err).NotTo(HaveOccurred())
	found := regexp.MustCompile("(?s)```sh\n(# clean-up of a node.*?)```").FindStringSubmatch(string(page))
	Expect(found).To(HaveLen(2), "the page has no commands for nodes")
	return found[1]
}

// The suite has installed Kiln. The specs remove it, and leave a cluster like the one that Kube-OVN leaves after step 4 of the page.
var _ = Describe("a migration from Kube-OVN", Ordered, Label(migrate, disruptive, mayRestart), func() {
	// kept are the addresses that Kube-OVN has given to pods.
	kept := map[string]struct{ ip, mac string }{
		"one": {"10.16.77.10,fd00:10:16::7710", "3e:12:9a:00:77:10"},
		"two": {"10.16.77.11,fd00:10:16::7711", "3e:12:9a:00:77:11"},
	}

	BeforeAll(func(ctx SpecContext) {
		makeNamespace(ctx, migrateNamespace)
		remove(ctx)
		for _, n := range suite.Lab.Nodes() {
			exec(ctx, n.Name, "sh", "-c", remains)
		}
		leaveObjects(ctx)
		i := 0
		for name, has := range kept {
			pod := cluster.Server(migrateNamespace, name, suite.Workers[i])
			pod.Spec.NodeName = suite.Workers[i] // a node without a network plugin gets no pods from the scheduler
			pod.Annotations = map[string]string{
				"ovn.kubernetes.io/allocated": "true", "ovn.kubernetes.io/routed": "true", "ovn.kubernetes.io/ip_address": has.ip,
				"ovn.kubernetes.io/mac_address": has.mac, "ovn.kubernetes.io/cidr": "10.16.0.0/16,fd00:10:16::/112",
				"ovn.kubernetes.io/gateway": "10.16.0.1,fd00:10:16::1", "ovn.kubernetes.io/logical_switch": "ovn-default",
				"ovn.kubernetes.io/logical_router": "ovn-cluster", "ovn.kubernetes.io/pod_nic_type": "veth-pair",
			}
			_, err := suite.Cluster.CoreV1().Pods(migrateNamespace).Create(ctx, pod, metav1.CreateOptions{})
			Expect(err).NotTo(HaveOccurred())
			i++
		}
	}, NodeTimeout(10*time.Minute))
	AfterAll(func(ctx SpecContext) {
		deleteNamespace(ctx, migrateNamespace)
		for _, o := range migrateObjects() {
			deleteObjects(ctx, o)
		}
	}, NodeTimeout(3*time.Minute))

	It("finds what would be lost", func(ctx SpecContext) {
		out, err := ko(ctx, "env-check", "--migrate")
		Expect(err).To(HaveOccurred())
		Expect(out).To(And(MatchRegexp(`lost +VpcDns e2e-dns`), MatchRegexp(`lost +Subnet e2e-second .*provider`)))
		out, err = ko(ctx, "env-check", "--migrate", "-o", "ovncluster")
		Expect(err).To(HaveOccurred()) // the same findings
		Expect(out).To(And(
			ContainSubstring("10.16.0.0/16"), ContainSubstring("100.64.0.0/16"), ContainSubstring("dataDirectory: "+envcheck.DataDirectory)))
	}, SpecTimeout(time.Minute))

	It("follows the page, and pods keep their addresses", func(ctx SpecContext) {
		for _, n := range suite.Lab.Nodes() {
			exec(ctx, n.Name, "sh", "-c", cleanUp())
			Expect(exec(ctx, n.Name, "sh", "-c", "ip -o link show; ls /etc/cni/net.d /run/openvswitch")).NotTo(
				Or(ContainSubstring("ovn0"), ContainSubstring("kube-ovn"), ContainSubstring("db.sock")), n.Name)
		}
		spec := asInstalled()
		spec.Central.DataDirectory = envcheck.DataDirectory
		Expect(suite.Cluster.ApplyOVNCluster(ctx, spec)).To(Succeed())
		Expect(suite.Cluster.WaitAvailable(ctx, func(m string) { GinkgoWriter.Println(m) })).To(Succeed())
		for name, has := range kept {
			pod, err := suite.Cluster.WaitPod(ctx, migrateNamespace, name, cluster.Ready)
			Expect(err).NotTo(HaveOccurred())
			var ips []string
			for _, a := range cluster.PodAddrs(pod) {
				ips = append(ips, a.String())
			}
			Expect(strings.Join(ips, ",")).To(Equal(has.ip), name)
			Expect(pod.Annotations).To(HaveKeyWithValue("ovn.kubernetes.io/mac_address", has.mac))
		}
		one, err := suite.Cluster.CoreV1().Pods(migrateNamespace).Get(ctx, "one", metav1.GetOptions{})
		Expect(err).NotTo(HaveOccurred())
		two, err := suite.Cluster.CoreV1().Pods(migrateNamespace).Get(ctx, "two", metav1.GetOptions{})
		Expect(err).NotTo(HaveOccurred())
		expectReach(ctx, one, two)
		renewPods(ctx)
		expectAllChecks(ctx)
		for _, n := range suite.Lab.Nodes() {
			Expect(exec(ctx, n.Name, "cat", "/etc/origin/ovn/ovnnb_db.db")).To(ContainSubstring("of another cluster"), "the way back needs Kube-OVN's database")
		}
	}, SpecTimeout(15*time.Minute))

	It("shows objects that have no effect, and lets go of them", func(ctx SpecContext) {
		dns := &kubeovnv1.VpcDns{ObjectMeta: metav1.ObjectMeta{Name: "e2e-dns"}}
		Eventually(func(g Gomega) {
			g.Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(dns), dns)).To(Succeed())
			g.Expect(fmt.Sprint(dns.Status.Conditions)).To(ContainSubstring(kubeovnv1.ReasonNotImplemented))
		}).WithContext(ctx).WithTimeout(30 * time.Second).Should(Succeed())
		deleteObjects(ctx, dns)
	}, SpecTimeout(time.Minute))
})

// migrateObjects are objects of the earlier network. This version has no controller for the first, and builds no network for the second.
func migrateObjects() []client.Object {
	finalized := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: name, Finalizers: []string{"kubeovn.io/kube-ovn-controller"}}
	}
	return []client.Object{
		&kubeovnv1.VpcDns{ObjectMeta: finalized("e2e-dns")},
		&kubeovnv1.Subnet{ObjectMeta: finalized("e2e-second"), Spec: kubeovnv1.SubnetSpec{CIDRBlock: "192.168.50.0/24", Provider: "net1.e2e-migrate.ovn"}},
		&kubeovnv1.Subnet{ObjectMeta: finalized("e2e-adopted"), Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.79.0.0/24"}},
	}
}

// leaveObjects creates these objects, and puts Kube-OVN's finalizer back on the default subnets: the removal of Kiln has deleted it.
func leaveObjects(ctx context.Context) {
	GinkgoHelper()
	for _, o := range migrateObjects() {
		Expect(suite.Objects.Create(ctx, o)).To(Succeed())
	}
	for _, name := range []string{kubeovnv1.DefaultSubnet, kubeovnv1.JoinSubnet} {
		subnet := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}}
		patch := []byte(`{"metadata":{"finalizers":["kubeovn.io/kube-ovn-controller"]}}`)
		Expect(suite.Objects.Patch(ctx, subnet, client.RawPatch(types.MergePatchType, patch))).To(Succeed())
	}
}
