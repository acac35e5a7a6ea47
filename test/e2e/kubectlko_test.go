// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/envcheck"
	"github.com/kiln-net/kiln/internal/kubectlko"
	"github.com/kiln-net/kiln/test/cluster"
)

const koNamespace = "e2e-ko"

// ko runs `kubectl ko` and returns its output.
func ko(ctx context.Context, args ...string) (string, error) {
	out := &bytes.Buffer{}
	cmd := kubectlko.NewCommand(strings.NewReader(""), out, GinkgoWriter)
	cmd.SetArgs(append([]string{"--kubeconfig=" + suite.Lab.Kubeconfig()}, args...))
	err := cmd.ExecuteContext(ctx)
	return out.String(), err
}

// expectNoRuns checks that no namespace of a command with pods of its own is left.
func expectNoRuns(ctx context.Context) {
	GinkgoHelper()
	namespaces, err := suite.Cluster.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	Expect(err).NotTo(HaveOccurred())
	for i := range namespaces.Items {
		Expect(namespaces.Items[i].Name).NotTo(HavePrefix("kiln-test-"))
	}
}

var _ = Describe("kubectl ko", func() {
	says := func(ctx context.Context, args ...string) string {
		GinkgoHelper()
		out, err := ko(ctx, args...)
		Expect(err).NotTo(HaveOccurred())
		return out
	}

	It("runs OVN's and Open vSwitch's programs where they are needed", Label(smoke), func(ctx SpecContext) {
		Expect(says(ctx, "nbctl", "--bare", "--columns=name", "list", "Logical_Switch")).To(ContainSubstring("ovn-default"))
		Expect(says(ctx, "sbctl", "--bare", "--columns=hostname", "list", "Chassis")).To(ContainSubstring(suite.Workers[0]))
		Expect(says(ctx, "vsctl", suite.Workers[0], "list-br")).To(HavePrefix("br-int\n"))
		Expect(says(ctx, "ofctl", suite.Workers[0], "-O", "OpenFlow15", "show", "br-int")).To(ContainSubstring("OFPT_FEATURES_REPLY"))
		Expect(says(ctx, "appctl", suite.Workers[1], "version")).To(ContainSubstring("ovs-vswitchd"))
		Expect(says(ctx, "dpctl", suite.Workers[1], "show")).To(ContainSubstring("port"))
		_, err := ko(ctx, "nbctl", "get", "Logical_Switch", "no-such-switch", "name")
		Expect(err).To(MatchError(ContainSubstring("exit code 1")))
	}, SpecTimeout(2*time.Minute))

	It("shows packets of a pod, and leaves no pod", func(ctx SpecContext) {
		makeNamespace(ctx, koNamespace)
		DeferCleanup(func(ctx SpecContext) { deleteNamespace(ctx, koNamespace) }, NodeTimeout(2*time.Minute))
		pod, err := suite.Cluster.Run(ctx, cluster.Server(koNamespace, "captured", suite.Workers[0])) // the kubelet's probes are its traffic
		Expect(err).NotTo(HaveOccurred())
		packets := []string{koNamespace + "/" + pod.Name, "-n", "-c", "4", "tcp", "port", fmt.Sprint(cluster.HTTPPort)}
		for _, image := range [][]string{nil, {"--image=" + cluster.AgnhostImage}} {
			out := says(ctx, append(append([]string{"tcpdump"}, image...), packets...)...)
			Expect(out).To(ContainSubstring(cluster.PodAddrs(pod)[0].String() + "." + fmt.Sprint(cluster.HTTPPort)))
		}
		const magic = "\xd4\xc3\xb2\xa1" // pcap-savefile(5), little-endian
		Expect(says(ctx, "tcpdump", koNamespace+"/"+pod.Name, "-c", "1", "-w", "-")).To(HavePrefix(magic))
		pods, err := suite.Cluster.CoreV1().Pods(cluster.Namespace).List(ctx, metav1.ListOptions{})
		Expect(err).NotTo(HaveOccurred())
		for i := range pods.Items {
			if pods.Items[i].DeletionTimestamp == nil {
				Expect(pods.Items[i].Name).NotTo(HavePrefix("kubectl-ko-tcpdump"))
			}
		}
	}, SpecTimeout(4*time.Minute))

	It("reports the state of the network, for people and for scripts", Label(smoke), func(ctx SpecContext) {
		Expect(says(ctx, "status", "--wait", "--timeout=1m")).To(And(ContainSubstring("Available:"), ContainSubstring("kube-ovn-cni"), ContainSubstring("(leader)")))
		var status kubectlko.Status
		Expect(json.Unmarshal([]byte(says(ctx, "status", "-o", "json")), &status)).To(Succeed())
		Expect(status.Healthy).To(BeTrue())
		Expect(status.NodesWithoutNetwork).To(BeEmpty())
		Expect(status.Northbound.Leader).NotTo(BeEmpty())
		Expect(says(ctx, "diagnose", "subnet", "ovn-default", "--packets=false")).To(And(ContainSubstring("Ready: True"), ContainSubstring("switch")))
	}, SpecTimeout(2*time.Minute))

	It("copies logs and the state of nodes", func(ctx SpecContext) {
		dir := GinkgoT().TempDir()
		says(ctx, "log", "all", "--directory="+dir)
		for _, pattern := range []string{"kube-ovn-controller-*.log", "ovn-central-nb-*.log"} {
			Expect(filepath.Glob(filepath.Join(dir, "*", pattern))).NotTo(BeEmpty(), pattern)
		}
		for _, file := range []string{"linux/routes", "linux/nftables", "linux/flows", "linux/sysctl"} {
			content, err := os.ReadFile(filepath.Join(dir, suite.Workers[0], file))
			Expect(err).NotTo(HaveOccurred())
			Expect(strings.Count(string(content), "\n")).To(BeNumerically(">", 2), file)
		}
	}, SpecTimeout(3*time.Minute))

	It("tests the network in less than two minutes, and leaves nothing", Label(timed), func(ctx SpecContext) {
		began := time.Now()
		out, err := ko(ctx, "test")
		Expect(err).NotTo(HaveOccurred(), out)
		Expect(out).To(And(ContainSubstring("ok    pod → pod, across nodes, tcp"), ContainSubstring("ok    NetworkPolicy"), ContainSubstring("ok    pod → pod in a VPC"), ContainSubstring("checks passed")))
		Expect(out).NotTo(ContainSubstring("FAIL"))
		Expect(time.Since(began)).To(BeNumerically("<", 2*time.Minute))
		expectNoRuns(ctx)
	}, SpecTimeout(4*time.Minute))

	It("names the nodes between which packets are lost", Label(disruptive), func(ctx SpecContext) {
		from := strings.Trim(strings.TrimSpace(says(ctx, "vsctl", suite.Workers[1], "get", "Open_vSwitch", ".", "external_ids:ovn-encap-ip")), `"`)
		lost := "table=0,priority=65000,tun_src=" + from
		says(ctx, "ofctl", suite.Workers[0], "add-flow", "br-int", lost+",actions=drop")
		end := func(ctx context.Context) {
			says(ctx, "ofctl", suite.Workers[0], "--strict", "del-flows", "br-int", lost)
		}
		DeferCleanup(func(ctx SpecContext) { end(ctx) }, NodeTimeout(time.Minute))
		out, err := ko(ctx, "test")
		Expect(err).To(MatchError(And(ContainSubstring(suite.Workers[0]), ContainSubstring(suite.Workers[1]))), out)
		Expect(out).To(And(ContainSubstring("FAIL  pod → pod, across nodes, tcp"), ContainSubstring("ok    pod → pod, same node")))
		expectNoRuns(ctx)
		end(ctx)
		out, err = ko(ctx, "test")
		Expect(err).NotTo(HaveOccurred(), out)
	}, SpecTimeout(12*time.Minute))

	It("sends packets between pods of a subnet, and leaves nothing", func(ctx SpecContext) {
		out, err := ko(ctx, "diagnose", "subnet", "ovn-default")
		Expect(err).NotTo(HaveOccurred(), out)
		Expect(out).To(And(ContainSubstring("ok    pods have addresses of the subnet"), ContainSubstring("ok    pod → gateway, icmp"), ContainSubstring("ok    pod → pod, across nodes, udp"),
			ContainSubstring("ok    node → pod, tcp"), ContainSubstring("pod of kube-ovn-pinger → pod: not checked: no pod of kube-ovn-pinger runs"), ContainSubstring("checks passed")))
		Expect(out).NotTo(ContainSubstring("FAIL"))

		useSample(ctx, "subnet_private.yaml", "vault", "friends")
		_, err = ko(ctx, "diagnose", "subnet", "vault")
		Expect(err).To(MatchError(And(ContainSubstring("does not list namespace NAMESPACE"), ContainSubstring("These may use the subnet already: vault"))))
		out, err = ko(ctx, "diagnose", "subnet", "vault", "--in=vault")
		Expect(err).NotTo(HaveOccurred(), out)
		Expect(out).To(And(ContainSubstring("ok    node → pod, tcp"), ContainSubstring("not checked: the subnet is private"), ContainSubstring("checks passed")))
		pods, err := suite.Cluster.CoreV1().Pods("vault").List(ctx, metav1.ListOptions{})
		Expect(err).NotTo(HaveOccurred())
		Expect(pods.Items).To(BeEmpty())
		expectNoRuns(ctx)
	}, SpecTimeout(6*time.Minute))

	It("measures pods, nodes and a Service in both families, and leaves nothing", func(ctx SpecContext) {
		out, err := ko(ctx, "perf", "--duration=200ms", "-o", "json", "--node="+suite.Workers[1], "--node="+suite.Workers[0])
		Expect(err).NotTo(HaveOccurred(), out)
		var report kubectlko.PerfReport
		Expect(json.Unmarshal([]byte(out), &report)).To(Succeed())
		paths := map[string]bool{}
		for _, row := range report.Rows {
			paths[row.Path+" "+row.From+" "+row.Family] = true
			Expect(row.To).To(Equal(suite.Workers[1]))
			Expect(row.BitsPerSecond).To(BeNumerically(">", 0), "%+v", row)
			Expect(row.RoundTrips).To(HaveLen(5))
			for _, trip := range row.RoundTrips {
				Expect(trip.P99).To(BeNumerically(">=", trip.Median), "%+v", row)
			}
		}
		for _, path := range []string{"pod network", "Service", "host network"} {
			for _, node := range suite.Workers[:2] {
				for _, family := range []string{"IPv4", "IPv6"} {
					Expect(paths).To(HaveKey(path + " " + node + " " + family))
				}
			}
		}
		expectNoRuns(ctx)
	}, SpecTimeout(8*time.Minute))

	It("shows what is dropped, by which object, and leaves no annotation", func(ctx SpecContext) {
		makeNamespace(ctx, koNamespace)
		DeferCleanup(func(ctx SpecContext) { deleteNamespace(ctx, koNamespace) }, NodeTimeout(2*time.Minute))
		from, to := serve(ctx, koNamespace, "from", 0), serve(ctx, koNamespace, "to", 1)
		policy := applyPolicy(ctx, koNamespace, "closed", `{podSelector: {matchLabels: {app: to}}, policyTypes: [Ingress]}`)
		annotation := func() (string, error) {
			np, err := suite.Cluster.NetworkingV1().NetworkPolicies(koNamespace).Get(ctx, policy.Name, metav1.GetOptions{})
			return np.Annotations["ovn.kubernetes.io/log_drops_until"], err
		}
		running, interrupt := context.WithCancel(ctx)
		defer interrupt()
		out, ended := gbytes.NewBuffer(), make(chan error, 1)
		cmd := kubectlko.NewCommand(strings.NewReader(""), out, GinkgoWriter)
		cmd.SetArgs([]string{"--kubeconfig=" + suite.Lab.Kubeconfig(), "drops", "pod", nameOf(to), "--for=5m"})
		go func() { ended <- cmd.ExecuteContext(running) }()
		Eventually(annotation).WithContext(ctx).WithTimeout(30 * time.Second).ShouldNot(BeEmpty())
		sources := addressesOf(from)
		for i, address := range addressesOf(to) {
			want := fmt.Sprintf("pod %s (%s) → pod %s (%s)  tcp %d  dropped by NetworkPolicy %s/closed, ingress\n", nameOf(from), sources[i], nameOf(to), address, cluster.HTTPPort, koNamespace)
			Eventually(func(g Gomega) {
				_, err := suite.Cluster.Exec(ctx, from, "curl", "-sfg", "-m", "1", "http://"+net.JoinHostPort(address, fmt.Sprint(cluster.HTTPPort))+"/hostname")
				g.Expect(err).To(HaveOccurred())
				g.Expect(string(out.Contents())).To(ContainSubstring(want))
			}).WithContext(ctx).WithTimeout(time.Minute).Should(Succeed())
		}
		interrupt()
		Eventually(ended).WithContext(ctx).WithTimeout(time.Minute).Should(Receive(BeNil()))
		Expect(annotation()).To(BeEmpty())
		_, table, _ := strings.Cut(string(out.Contents()), "PACKETS")
		Expect(table).To(And(ContainSubstring(sources[0]), ContainSubstring(to.Spec.NodeName)))
	}, SpecTimeout(6*time.Minute))

	It("shows what security groups and acls of a subnet drop, and leaves no annotation", func(ctx SpecContext) {
		makeNamespace(ctx, koNamespace)
		DeferCleanup(func(ctx SpecContext) { deleteNamespace(ctx, koNamespace) }, NodeTimeout(2*time.Minute))
		from := serve(ctx, koNamespace, "from", 0)
		group := &kubeovnv1.SecurityGroup{ObjectMeta: metav1.ObjectMeta{Name: koNamespace}, Spec: kubeovnv1.SecurityGroupSpec{AllowedNamespaces: []kubeovnv1.AllowedNamespace{koNamespace}}}
		Expect(suite.Objects.Create(ctx, group)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { deleteObjects(ctx, group) }, NodeTimeout(time.Minute))
		grouped := cluster.Server(koNamespace, "grouped", suite.Workers[1])
		grouped.Annotations = map[string]string{keyGroups: group.Name}
		grouped, err := suite.Cluster.Run(ctx, grouped)
		Expect(err).NotTo(HaveOccurred())
		match := fmt.Sprintf("(ip4.src == %s || ip6.src == %s) && tcp.dst == %d", addressesOf(from)[0], addressesOf(from)[1], cluster.HTTPPort) // not of the kubelet's probes
		ruled := apartFrom(ctx, "", kubeovnv1.SubnetSpec{ACLs: []kubeovnv1.ACL{{Direction: "to-lport", Priority: 1500, Match: match, Action: "drop"}}})
		subnet := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: symptomsElsewhere}}
		for _, tt := range []struct {
			to     *corev1.Pod
			object client.Object
			by     string
		}{
			{grouped, group, "SecurityGroup " + group.Name + ", ingress"},
			{ruled, subnet, "Subnet " + subnet.Name + ", acls with direction to-lport and priority 1500"},
		} {
			annotation := func() (string, error) {
				err := suite.Objects.Get(ctx, client.ObjectKeyFromObject(tt.object), tt.object)
				return tt.object.GetAnnotations()["ovn.kubernetes.io/log_drops_until"], err
			}
			running, interrupt := context.WithCancel(ctx)
			out, ended := gbytes.NewBuffer(), make(chan error, 1)
			cmd := kubectlko.NewCommand(strings.NewReader(""), out, GinkgoWriter)
			cmd.SetArgs([]string{"--kubeconfig=" + suite.Lab.Kubeconfig(), "drops", "pod", nameOf(tt.to), "--for=5m"})
			go func() { ended <- cmd.ExecuteContext(running) }()
			Eventually(annotation).WithContext(ctx).WithTimeout(30 * time.Second).ShouldNot(BeEmpty())
			for _, address := range addressesOf(tt.to) {
				Eventually(func(g Gomega) {
					_, err := suite.Cluster.Exec(ctx, from, "curl", "-sfg", "-m", "1", "http://"+net.JoinHostPort(address, fmt.Sprint(cluster.HTTPPort))+"/hostname")
					g.Expect(err).To(HaveOccurred())
					g.Expect(string(out.Contents())).To(ContainSubstring(fmt.Sprintf("→ pod %s (%s)  tcp %d  dropped by %s\n", nameOf(tt.to), address, cluster.HTTPPort, tt.by)))
				}).WithContext(ctx).WithTimeout(time.Minute).Should(Succeed())
			}
			interrupt()
			Eventually(ended).WithContext(ctx).WithTimeout(time.Minute).Should(Receive(BeNil()))
			Expect(annotation()).To(BeEmpty())
		}
	}, SpecTimeout(10*time.Minute))

	It("checks nodes and the paths between them, and leaves nothing", func(ctx SpecContext) {
		out, err := ko(ctx, "env-check", "-o", "json", "--node="+suite.Workers[0], "--node="+suite.Workers[1])
		var report envcheck.Report
		Expect(json.Unmarshal([]byte(out), &report)).To(Succeed(), "%v: %s", err, out)
		levels := map[string]envcheck.Level{}
		for _, f := range report.Findings {
			Expect(f.Subject).NotTo(Equal("Nodes"), "%+v", f)
			if _, worse := levels[f.Subject]; !worse { // the most important ones come first
				levels[f.Subject] = f.Level
			}
		}
		for _, subject := range []string{"CNI configuration", "MTU of nodes", "Packets between nodes"} {
			Expect(levels[subject]).To(BeElementOf(envcheck.OK, envcheck.Level("")), "%s of %s", subject, out)
		}
		Expect(levels).To(And(HaveKey("Kernel modules"), HaveKey("Kernel parameters"), HaveKey("CNI configuration"), HaveKey("Packets between nodes")))
		expectNoRuns(ctx)
	}, SpecTimeout(4*time.Minute))

	It("refuses to delete leaders of databases with one member", func(ctx SpecContext) {
		out, err := ko(ctx, "perf", "--disrupt", "--yes")
		Expect(err).To(MatchError(ContainSubstring("without one of them no other could take over: 3 are needed; nothing was deleted")), out)
		expectNoRuns(ctx)
	}, SpecTimeout(time.Minute))

	It("makes an archive for a report of a defect", func(ctx SpecContext) {
		file := filepath.Join(GinkgoT().TempDir(), "dump.tar.gz")
		Expect(says(ctx, "sysdump", file)).To(ContainSubstring(file))
		into := GinkgoT().TempDir()
		// A user opens the archive with tar(1): the spec shows that it can.
		out, err := osexec.CommandContext(ctx, "tar", "-xzf", file, "--strip-components=1", "-C", into).CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), string(out))
		failures, err := os.ReadFile(filepath.Join(into, "errors.txt"))
		Expect(err).NotTo(HaveOccurred())
		Expect(strings.TrimSpace(string(failures))).To(BeEmpty())
		for _, pattern := range []string{
			"status.txt", "nb-dbstatus.txt", "objects/Subnet.yaml", "objects/EndpointSlice.yaml", "databases/ovnnb_db.db", "databases/ovnsb_db.db", "nodes/*/kube-ovn-controller-*.log",
			"nodes/" + suite.Workers[0] + "/linux/flows", "nodes/" + suite.Workers[0] + "/linux/conntrack", "nodes/" + suite.Workers[0] + "/linux/datapath-conntrack",
		} {
			found, err := filepath.Glob(filepath.Join(into, pattern))
			Expect(err).NotTo(HaveOccurred())
			Expect(found).NotTo(BeEmpty(), pattern)
			for _, f := range found {
				content, err := os.ReadFile(f)
				Expect(err).NotTo(HaveOccurred())
				Expect(strings.Count(string(content), "\n")).To(BeNumerically(">", 0), f)
			}
		}
		sysctls, err := os.ReadFile(filepath.Join(into, "nodes", suite.Workers[0], "linux/sysctl"))
		Expect(err).NotTo(HaveOccurred())
		Expect(string(sysctls)).NotTo(Or(ContainSubstring("stable_secret:"), ContainSubstring("tcp_fastopen_key:")), "the values are secrets")
	}, SpecTimeout(4*time.Minute))

	It("replaces the pods of a component one by one", Label(disruptive, mayRestart), func(ctx SpecContext) {
		before, err := suite.Cluster.PodsOf(ctx, "ovn-central-northd")
		Expect(err).NotTo(HaveOccurred())
		Expect(says(ctx, "reload", "ovn-central-northd", "--yes")).To(ContainSubstring("replacing ovn-central-northd-"))
		after, err := suite.Cluster.PodsOf(ctx, "ovn-central-northd")
		Expect(err).NotTo(HaveOccurred())
		for i := range after {
			Expect(after[i].UID).NotTo(Equal(before[0].UID))
		}
		Expect(suite.Cluster.WaitAvailable(ctx, func(string) {})).To(Succeed())
		expectAllChecks(ctx)
	}, SpecTimeout(4*time.Minute))

	It("makes backups, and rebuilds the northbound database from one without a lost packet", Label(timed, disruptive, mayRestart), func(ctx SpecContext) {
		DeferCleanup(func(ctx SpecContext) {
			Expect(suite.Cluster.ApplyOVNCluster(ctx, asInstalled())).To(Succeed())
			deleteNamespace(ctx, koNamespace)
		}, NodeTimeout(3*time.Minute))
		p := makePair(ctx, koNamespace)
		dir := GinkgoT().TempDir()
		for _, db := range []string{"nb", "sb"} {
			path := strings.TrimSpace(says(ctx, db, "backup", "--directory="+dir))
			content, err := os.ReadFile(path)
			Expect(err).NotTo(HaveOccurred())
			Expect(string(content)).To(HavePrefix("OVSDB JSON "), path)
		}
		says(ctx, "nbctl", "ls-add", "e2e-ko-after-the-backup")
		made, err := filepath.Glob(filepath.Join(dir, "ovnnb_db-*.db"))
		Expect(err).NotTo(HaveOccurred())
		Expect(made).To(HaveLen(1))

		running := startFlows(ctx, p)
		Expect(says(ctx, "nb", "restore", "--yes", made[0])).To(ContainSubstring("Completed"))
		settled(ctx, trialDatabases[0], 1)
		Expect(suite.Cluster.WaitAvailable(ctx, func(string) {})).To(Succeed())
		switches := says(ctx, "nbctl", "--bare", "--columns=name", "list", "Logical_Switch")
		Expect(switches).To(ContainSubstring("ovn-default"))
		Expect(switches).NotTo(ContainSubstring("e2e-ko-after-the-backup"))
		Expect(running.end(ctx).losses()).To(BeEmpty())
		expectAllChecks(ctx)
	}, SpecTimeout(6*time.Minute))
})
