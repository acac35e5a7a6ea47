// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/test/cluster"
)

// alertFaults are groups of faults that exist at the same time, because they do not affect one another.
var alertFaults = [][]alertFault{
	{
		{name: "ovs-vswitchd of a gateway node is stopped", begin: stopGateway, fires: []string{"KilnOpenVSwitchNotScraped", "KilnComponentNotReady", "KilnGatewayMoved"}},
	},
	{
		{name: "the API server is cut off from pods", begin: cutPodsFromAPIServer, fires: []string{"KubeOvnApiserverUnhealthy"}},
		{name: "ovn-northd keeps stopping for eight seconds", begin: slowNorthd, fires: []string{"KilnNorthdSlow"}},
	},
	{
		{name: "the northbound database keeps stopping for 15 s", begin: slowNorthbound, fires: []string{"KubeOvnOvsdbSlowRequest", "KilnPodNetworkSlow"}},
	},
	{
		{
			name: "the new image does not exist", fires: []string{"KilnUpgradeStopped"},
			begin: func(ctx context.Context) func(context.Context) {
				return changeOVNCluster(ctx, `{"image":"registry.invalid/kiln:missing"}`, `{"image":null}`)
			},
		},
		{
			name: "kube-ovn-controller does not answer", fires: []string{"KubeOvnControllerDown"},
			begin: func(ctx context.Context) func(context.Context) {
				return cutOff(ctx, []string{`iifname != "lo" tcp dport 10660`}, nil, leadingController(ctx).Spec.NodeName)
			},
		},
		{
			name: "kube-ovn-monitor does not reach ovn-northd", fires: []string{"KilnMonitorTargetDown"},
			begin: func(ctx context.Context) func(context.Context) {
				return cutOff(ctx, []string{"tcp dport 6655"}, nil, activeNorthd(ctx).Spec.NodeName)
			},
		},
	},
	{
		{
			name: "the only member of the northbound database is stalled", begin: stallNorthbound,
			fires: []string{"KilnDatabaseMemberDown", "KilnDatabaseWithoutLeader", "KilnNotAvailable", "KilnNorthboundNotWritten"},
		},
	},
	{
		{name: "the operator does not run, and the Service of kube-ovn-controller is deleted", begin: loseController, fires: []string{"KilnOperatorDown", "KubeOvnControllerAbsent"}},
		{name: "DNS is stopped", begin: stopDNS, fires: []string{"KubeOvnInternalDNSUnhealthy"}},
		{name: "ovn-controller of a node is stopped", begin: stopDaemon("ovn-controller"), fires: []string{"KubeOvnOvnControllerDown"}},
	},
	{
		{
			name: "the database server of a node's Open vSwitch is stopped", fires: []string{"KubeOvnOvsDown", "KilnOpenVSwitchDown"},
			begin: func(ctx context.Context) func(context.Context) {
				return stopProcess(ctx, suite.Workers[0], nodeDatabase)
			},
		},
		{
			name: "ovn-northd is stopped", fires: []string{"KilnNorthdNotActive"},
			begin: func(ctx context.Context) func(context.Context) {
				return stopProcess(ctx, activeNorthd(ctx).Spec.NodeName, "pidof ovn-northd")
			},
		},
	},
	{
		{
			name: "a node does not reach the southbound database", fires: []string{"KilnChassisDisconnected"},
			begin: func(ctx context.Context) func(context.Context) {
				return cutOff(ctx, []string{"tcp sport 6642"}, []string{"tcp dport 6642"}, suite.Workers[0])
			},
		},
		{name: "the gateway node of a subnet is cut off from the API server", begin: loseGateway, fires: []string{"KilnGatewayMoved"}},
	},
	{
		{name: "a CA expires in five days", begin: expiringAuthority, fires: []string{"KilnAuthorityExpiring"}},
		{name: "the certificate of a node expires in six hours", begin: expiringCertificate, fires: []string{"KilnCertificateExpiring"}},
		{name: "the directory of backups cannot be written", begin: failingBackups, fires: []string{"KilnBackupTooOld", "KilnDegraded"}},
		{name: "a router does not answer, and another one keeps ending its session", begin: failingRouters, fires: []string{"KilnBGPSessionDown", "KilnBGPSessionFlaps"}},
		{name: "a switch has 1,845 of the 2,047 ports that it can have with VXLAN", begin: fillSwitch, fires: []string{"KilnSwitchAlmostFull"}},
		{name: "a node can track few more connections than it does", begin: fillConntrack, fires: []string{"KilnConntrackAlmostFull"}},
		{name: "a node gets tunnel packets from an address that is no node's", begin: loseUpcalls, fires: []string{"KilnDatapathOverload"}},
		{name: "another program has replaced the port of a pod", begin: losePort, fires: []string{"KilnPodPortsMissing"}},
		{name: "a node has more mirrors than Open vSwitch uses", begin: exceedMirrors, fires: []string{"KilnMirrorIncomplete"}},
		{name: "a subnet has one address, and a pod has it", begin: fillSubnet, fires: []string{"KubeOvnSubnetIPExhaustion"}},
		{name: "the port of another system has the name of a pod's port", begin: refuseRows, fires: []string{"KilnRowsRefused"}},
		{
			name: "a ProviderNetwork has an interface that no node has", fires: []string{"KilnProviderNetworkNotReady"},
			begin: func(ctx context.Context) func(context.Context) {
				return during(ctx, &kubeovnv1.ProviderNetwork{
					ObjectMeta: metav1.ObjectMeta{Name: "e2e-alerts"}, Spec: kubeovnv1.ProviderNetworkSpec{DefaultInterface: "eth9"},
				})
			},
		},
		{
			name: "a Vpc names an external subnet that does not exist", fires: []string{"KilnExternalPortWithoutNode"},
			begin: func(ctx context.Context) func(context.Context) {
				return during(ctx, &kubeovnv1.Vpc{
					ObjectMeta: metav1.ObjectMeta{Name: "e2e-alerts"}, Spec: kubeovnv1.VpcSpec{ExtraExternalSubnets: []string{"e2e-nosuch"}},
				})
			},
		},
		{name: "a pool has one address, and two Services request one", begin: exhaustPool, fires: []string{"KilnLoadBalancerPoolExhausted"}},
		{
			name: "a Subnet overlaps another one", fires: []string{"KilnObjectsNotReady"},
			begin: func(ctx context.Context) func(context.Context) {
				return during(ctx, alertsSubnet("overlaps", "10.16.128.0/24"))
			},
		},
	},
}

// exhaustPool makes two Services of a class whose pool has one address.
func exhaustPool(ctx context.Context) func(context.Context) {
	GinkgoHelper()
	const class = "example.com/one-address"
	withdraw := changeOVNCluster(ctx, `{"services":{"loadBalancerPools":[{"class":"`+class+`","addresses":["203.0.113.1"],"namespaces":["`+alertsNamespace+`"]}]}}`,
		`{"services":{"loadBalancerPools":null}}`)
	var services []client.Object
	for _, name := range []string{"served", "waiting"} {
		services = append(services, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: alertsNamespace, Name: name},
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: new(class), IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
				Ports: []corev1.ServicePort{{Port: 80}},
			},
		})
	}
	remove := during(ctx, services...)
	return func(ctx context.Context) {
		GinkgoHelper()
		remove(ctx)
		withdraw(ctx)
	}
}

// changeOVNCluster applies a merge patch of the spec, and returns a function that applies another one.
func changeOVNCluster(ctx context.Context, change, undo string) func(context.Context) {
	GinkgoHelper()
	patch := func(ctx context.Context, spec string) {
		GinkgoHelper()
		oc := &v1alpha1.OVNCluster{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.OVNClusterName}}
		Expect(suite.Objects.Patch(ctx, oc, client.RawPatch(types.MergePatchType, []byte(`{"spec":`+spec+`}`)))).To(Succeed())
	}
	back := func(ctx context.Context) { patch(ctx, undo) }
	DeferCleanup(func(ctx SpecContext) { back(ctx) }, NodeTimeout(time.Minute))
	patch(ctx, change)
	return back
}

// expiringAuthority replaces the certificate of the CA of the admin endpoints by one with the same key that ends soon. It has two thirds of its
// lifetime left, so the operator makes no successor.
func expiringAuthority(ctx context.Context) func(context.Context) {
	GinkgoHelper()
	const name = "kiln-ca-admin"
	original, pair := certificateOf(ctx, name)
	soon := *pair.Leaf
	soon.NotBefore, soon.NotAfter = time.Now().Add(-time.Hour), time.Now().AddDate(0, 0, 5)
	set := func(ctx context.Context, certificate []byte) {
		GinkgoHelper()
		patch := fmt.Appendf(nil, `{"data":{%q:%q}}`, corev1.TLSCertKey, base64.StdEncoding.EncodeToString(certificate))
		Expect(suite.Objects.Patch(ctx, original.DeepCopy(), client.RawPatch(types.MergePatchType, patch))).To(Succeed())
	}
	back := func(ctx context.Context) { set(ctx, original.Data[corev1.TLSCertKey]) }
	DeferCleanup(func(ctx SpecContext) { back(ctx) }, NodeTimeout(time.Minute))
	set(ctx, signed(&soon, pair))
	return back
}

// certificateOf returns a Secret and its key with the certificate.
func certificateOf(ctx context.Context, name string) (*corev1.Secret, tls.Certificate) {
	GinkgoHelper()
	secret := &corev1.Secret{}
	Expect(suite.Objects.Get(ctx, client.ObjectKey{Namespace: cluster.Namespace, Name: name}, secret)).To(Succeed())
	pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	Expect(err).NotTo(HaveOccurred())
	return secret, pair
}

// expiringCertificate replaces the certificate of a node by one that ends soon. A new pod requests another one.
func expiringCertificate(ctx context.Context) func(context.Context) {
	GinkgoHelper()
	const file = "/etc/openvswitch/kiln/tls.crt"
	node := suite.Workers[1]
	block, _ := pem.Decode([]byte(exec(ctx, node, "cat", file)))
	Expect(block).NotTo(BeNil())
	leaf, err := x509.ParseCertificate(block.Bytes)
	Expect(err).NotTo(HaveOccurred())
	leaf.NotAfter = time.Now().Add(6 * time.Hour)
	_, authority := certificateOf(ctx, "kiln-ca-sb-client")
	back := func(ctx context.Context) {
		GinkgoHelper()
		Expect(suite.Objects.Delete(ctx, ovsOf(ctx, node))).To(Succeed())
		Eventually(func(g Gomega) {
			pod := ovsOf(ctx, node)
			g.Expect(pod).NotTo(BeNil())
			g.Expect(cluster.Ready(pod)).To(BeTrue())
		}).WithContext(ctx).WithTimeout(2 * time.Minute).WithPolling(time.Second).Should(Succeed())
	}
	exec(ctx, node, "sh", "-c", fmt.Sprintf("cat >%[1]s.e2e <<'.'\n%[2]s.\nmv %[1]s.e2e %[1]s", file, signed(leaf, authority)))
	return back
}

// failingBackups puts a file in the place of the directory of backups.
func failingBackups(ctx context.Context) func(context.Context) {
	GinkgoHelper()
	directory := dataDir + "backups"
	back := func(ctx context.Context) {
		exec(ctx, controlPlane(), "sh", "-c", fmt.Sprintf("if test -d %[1]s.e2e; then rm -f %[1]s && mv %[1]s.e2e %[1]s; fi", directory))
	}
	DeferCleanup(func(ctx SpecContext) { back(ctx) }, NodeTimeout(time.Minute))
	exec(ctx, controlPlane(), "sh", "-c", fmt.Sprintf("mv %[1]s %[1]s.e2e && touch %[1]s", directory))
	return back
}

// fillSwitch adds a chassis with VXLAN, which makes switches smaller, and fills the switch of a subnet: each of its vips, and each address of its
// Vips, is a port.
func fillSwitch(ctx context.Context) func(context.Context) {
	GinkgoHelper()
	const chassis, vips, objects = "e2e-alerts", 1024, 410
	subnet := alertsSubnet("switch", "10.80.0.0/20,fd00:10:80::/112")
	for i := range vips {
		subnet.Spec.Vips = append(subnet.Spec.Vips, fmt.Sprintf("10.80.%d.%d", 8+i/256, i%256))
	}
	remove := during(ctx, subnet)
	end := func(ctx context.Context) {
		GinkgoHelper()
		Expect(suite.Objects.DeleteAllOf(ctx, &kubeovnv1.Vip{}, client.MatchingLabels{alertsNamespace: ""})).To(Succeed())
		_, err := ko(ctx, "sbctl", "--if-exists", "chassis-del", chassis)
		Expect(err).NotTo(HaveOccurred())
		remove(ctx)
	}
	DeferCleanup(func(ctx SpecContext) { end(ctx) }, NodeTimeout(time.Minute))
	var all sync.WaitGroup
	errs := make([]error, objects)
	const parallel = 8
	for first := range parallel {
		all.Go(func() {
			for i := first; i < objects; i += parallel {
				errs[i] = suite.Objects.Create(ctx, &kubeovnv1.Vip{
					ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("e2e-alerts-%d", i), Labels: map[string]string{alertsNamespace: ""}},
					Spec:       kubeovnv1.VipSpec{Subnet: subnet.Name},
				})
			}
		})
	}
	all.Wait()
	Expect(errs).To(HaveEach(BeNil()))
	_, err := ko(ctx, "sbctl", "chassis-add", chassis, "vxlan", "192.0.2.99")
	Expect(err).NotTo(HaveOccurred())
	return end
}

// fillConntrack limits the connections of a node's userspace datapath to little more than it has.
func fillConntrack(ctx context.Context) func(context.Context) {
	GinkgoHelper()
	node := suite.Workers[1]
	dpctl := func(ctx context.Context, command string, args ...string) int {
		GinkgoHelper()
		out, err := ko(ctx, append([]string{"appctl", node, "dpctl/" + command, "netdev@ovs-netdev"}, args...)...)
		Expect(err).NotTo(HaveOccurred())
		n, _ := strconv.Atoi(strings.TrimSpace(out)) // the other command prints nothing
		return n
	}
	before, connections := dpctl(ctx, "ct-get-maxconns"), dpctl(ctx, "ct-get-nconns")
	Expect(connections).To(BeNumerically(">", 10))
	limit := func(ctx context.Context, n int) { dpctl(ctx, "ct-set-maxconns", strconv.Itoa(n)) }
	end := func(ctx context.Context) { limit(ctx, before) }
	DeferCleanup(func(ctx SpecContext) { end(ctx) }, NodeTimeout(time.Minute))
	limit(ctx, connections)
	return end
}

// loseUpcalls sends packets of a tunnel from an unknown address to a node. Its userspace datapath counts a packet as lost if ovs-vswitchd has no
// port for it.
func loseUpcalls(ctx context.Context) func(context.Context) {
	GinkgoHelper()
	from := suite.Workers[1]
	encapsulation, err := ko(ctx, "vsctl", suite.Workers[0], "get", "Open_vSwitch", ".", "external_ids:ovn-encap-ip")
	Expect(err).NotTo(HaveOccurred())
	to := strings.Trim(strings.TrimSpace(encapsulation), `"`)
	unknown := to[:strings.LastIndex(to, ".")] + ".250"
	const geneve = `\0\0\x65\x58\0\0\1\0` + `\2\0\0\0\0\1\2\0\0\0\0\2\x08\0` // a header, and the one of an Ethernet packet
	end := background(ctx, from, fmt.Sprintf(`printf '%s%%050d' 0 >/dev/udp/%s/6081; sleep 0.05`, geneve, to),
		"nft 'table ip e2e_alerts; delete table ip e2e_alerts'")
	exec(ctx, from, "nft", fmt.Sprintf("table ip e2e_alerts { chain output { type filter hook output priority -300; ip daddr %s udp dport 6081 ip saddr set %s; }; }", to, unknown))
	return end
}

// background repeats commands on a node until the returned function is called, which runs last after them.
func background(ctx context.Context, node, commands, last string) func(context.Context) {
	GinkgoHelper()
	const running = "/run/e2e-alerts"
	end := func(ctx context.Context) {
		exec(ctx, node, "bash", "-c", fmt.Sprintf("rm -f %s; while [ -e %[1]s.ends ]; do sleep 0.1; done; %s", running, last))
	}
	DeferCleanup(func(ctx SpecContext) { end(ctx) }, NodeTimeout(time.Minute))
	loop := fmt.Sprintf("while [ -e %s ]; do %s; done; rm %[1]s.ends", running, commands)
	exec(ctx, node, "bash", "-c", fmt.Sprintf("touch %s %[1]s.ends; setsid bash -c %s </dev/null >/dev/null 2>&1 &", running, quote(loop)))
	return end
}

// quote quotes a word for the shell.
func quote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

// slowNorthd lets ovn-northd run for one of each nine seconds.
func slowNorthd(ctx context.Context) func(context.Context) {
	GinkgoHelper()
	node := activeNorthd(ctx).Spec.NodeName
	pid := strings.TrimSpace(exec(ctx, node, "pidof", "ovn-northd"))
	return background(ctx, node, fmt.Sprintf("kill -STOP %s; sleep 8; kill -CONT %[1]s; sleep 1", pid), "kill -CONT "+pid+" || true")
}

// stallNorthbound stops the only member of the northbound database.
func stallNorthbound(ctx context.Context) func(context.Context) {
	GinkgoHelper()
	return stopProcess(ctx, controlPlane(), northboundServer)
}

// northboundServer finds the process of a member.
var northboundServer = fmt.Sprintf("pgrep -f '^[^ ]*ovsdb-server .*/%s[.]'", strings.TrimSuffix(trialDatabases[0].file, ".db"))

// slowNorthbound stops the only member of the northbound database for 15 of each 17 seconds, while pods are created.
func slowNorthbound(ctx context.Context) func(context.Context) {
	GinkgoHelper()
	pid := strings.TrimSpace(exec(ctx, controlPlane(), "sh", "-c", northboundServer))
	release := background(ctx, controlPlane(), fmt.Sprintf("kill -STOP %s; sleep 15; kill -CONT %[1]s; sleep 2", pid), "kill -CONT "+pid+" || true")
	creation, enough := context.WithCancel(context.WithoutCancel(ctx))
	var done sync.WaitGroup
	pods := suite.Cluster.CoreV1().Pods(alertsNamespace)
	end := func(ctx context.Context) {
		enough()
		done.Wait()
		release(ctx)
		Expect(pods.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})).To(Succeed())
	}
	DeferCleanup(func(ctx SpecContext) { end(ctx) }, NodeTimeout(time.Minute))
	done.Go(func() {
		for i := 0; pause(creation, 4*time.Second) == nil; i++ {
			_, _ = pods.Create(creation, cluster.Server(alertsNamespace, fmt.Sprintf("slow-%d", i), suite.Workers[i%2]), metav1.CreateOptions{})
		}
	})
	return end
}

// refuseRows makes the database refuse the port of a pod.
func refuseRows(ctx context.Context) func(context.Context) {
	GinkgoHelper()
	makeNamespace(ctx, faultsNamespace)
	DeferCleanup(func(ctx SpecContext) { deleteNamespace(ctx, faultsNamespace) }, NodeTimeout(2*time.Minute))
	return refusedPort(ctx, func() {})
}

// loseController removes the targets of kube-ovn-controller. The operator creates the Service again when it is back.
func loseController(ctx context.Context) func(context.Context) {
	GinkgoHelper()
	back := func(ctx context.Context) { scaleOperator(ctx, 1) }
	DeferCleanup(func(ctx SpecContext) { back(ctx) }, NodeTimeout(2*time.Minute))
	scaleOperator(ctx, 0)
	Expect(suite.Cluster.CoreV1().Services(cluster.Namespace).Delete(ctx, "kube-ovn-controller", metav1.DeleteOptions{})).To(Succeed())
	return back
}

func alertsSubnet(name, cidrs string) *kubeovnv1.Subnet {
	return &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "e2e-alerts-" + name}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: cidrs}}
}

func fillSubnet(ctx context.Context) func(context.Context) {
	GinkgoHelper()
	subnet := alertsSubnet("full", "10.78.0.0/30")
	remove := during(ctx, subnet)
	pod := cluster.Server(alertsNamespace, "full", suite.Workers[0])
	pod.Annotations = map[string]string{kubeovnv1.AnnotationLogicalSwitch.Key(): subnet.Name}
	_, err := suite.Cluster.Run(ctx, pod)
	Expect(err).NotTo(HaveOccurred())
	end := func(ctx context.Context) {
		removePods(ctx, alertsNamespace, pod.Name)
		remove(ctx)
	}
	DeferCleanup(func(ctx SpecContext) { removePods(ctx, alertsNamespace, pod.Name) }, NodeTimeout(time.Minute))
	return end
}

// losePort runs a pod whose port another program replaces.
func losePort(ctx context.Context) func(context.Context) {
	GinkgoHelper()
	node := suite.Workers[0]
	pod := cluster.Server(alertsNamespace, "port", node)
	_, err := suite.Cluster.Run(ctx, pod)
	Expect(err).NotTo(HaveOccurred())
	port := replacePort(ctx, pod)
	end := func(ctx context.Context) {
		vsctl(ctx, node, "--if-exists", "del-port", "br-int", port)
		removePods(ctx, alertsNamespace, pod.Name)
	}
	DeferCleanup(func(ctx SpecContext) { end(ctx) }, NodeTimeout(time.Minute))
	return end
}

// exceedMirrors adds mirrors of an administrator to a node, next to the agent's.
func exceedMirrors(ctx context.Context) func(context.Context) {
	GinkgoHelper()
	node := suite.Workers[0]
	var add, remove []string
	for i := range 32 { // ovs.MaxMirrors
		id := fmt.Sprintf("@m%d", i)
		add = append(add, "--", "--id="+id, "create", "Mirror", fmt.Sprintf("name=e2e-%d", i), "--", "add", "Bridge", "br-int", "mirrors", id)
		remove = append(remove, "--", "--id="+id, "get", "Mirror", fmt.Sprintf("e2e-%d", i), "--", "remove", "Bridge", "br-int", "mirrors", id)
	}
	end := func(ctx context.Context) { vsctl(ctx, node, remove...) }
	DeferCleanup(func(ctx SpecContext) { _, _ = suite.Node.Exec(ctx, node, append([]string{"ovs-vsctl"}, remove...)...) }, NodeTimeout(time.Minute))
	vsctl(ctx, node, add...)
	return end
}

// gatewaySubnet creates a subnet whose traffic leaves through the first worker, and through the second one if that fails.
func gatewaySubnet(ctx context.Context) func(context.Context) {
	GinkgoHelper()
	subnet := alertsSubnet("gateway", "10.79.0.0/29")
	subnet.Spec.GatewayType, subnet.Spec.GatewayNode, subnet.Spec.NATOutgoing = kubeovnv1.GatewayCentralized, strings.Join(suite.Workers[:2], ","), true
	remove := during(ctx, subnet)
	expectActive(ctx, subnet.Name, suite.Workers[0])
	Eventually(func(g Gomega) { // until Prometheus has the counter before the failover
		series, err := prometheusAPI().Instant(ctx, fmt.Sprintf("kiln_gateway_failovers_total{subnet_name=%q}", subnet.Name))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(series).To(HaveLen(1))
	}).WithContext(ctx).WithTimeout(time.Minute).WithPolling(time.Second).Should(Succeed())
	return remove
}

// loseGateway cuts the gateway node of a subnet off from the API server, so that its Lease expires.
func loseGateway(ctx context.Context) func(context.Context) {
	GinkgoHelper()
	remove := gatewaySubnet(ctx)
	restore := cutOff(ctx, []string{"tcp sport 6443"}, []string{"tcp dport 6443"}, suite.Workers[0])
	return func(ctx context.Context) {
		restore(ctx)
		remove(ctx)
	}
}

// stopGateway stops ovs-vswitchd on the gateway node of a subnet. Its other processes run.
func stopGateway(ctx context.Context) func(context.Context) {
	GinkgoHelper()
	remove := gatewaySubnet(ctx)
	restore := stopDaemon("ovs-vswitchd")(ctx)
	return func(ctx context.Context) {
		restore(ctx)
		expectActive(ctx, "e2e-alerts-gateway", suite.Workers[0])
		remove(ctx)
	}
}
