// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/hack/dashboard/page"
	"github.com/kiln-net/kiln/test/cluster"
)

// Environment variables of the specs of alerts.
const (
	alertsReport = "ALERTS_REPORT"
	// alertsFaster is the factor by which the durations of alerts are shortened.
	alertsFaster = "ALERTS_FASTER"
)

const alertsNamespace = "e2e-alerts"

// leastRange is the shortest range of a rate: it has three samples.
const leastRange = 3 * prometheusInterval

// alertFault is a fault that makes alerts fire. Other alerts may fire as well.
type alertFault struct {
	name  string
	begin func(context.Context) func(context.Context)
	fires []string
}

var alertFaults = []alertFault{
	{
		name: "kube-ovn-controller does not answer", fires: []string{"KubeOvnControllerDown"},
		begin: func(ctx context.Context) func(context.Context) {
			return cutOff(ctx, []string{`iifname != "lo" tcp dport 10660`}, nil, leadingController(ctx).Spec.NodeName)
		},
	},
	{name: "the operator does not run, and the Service of kube-ovn-controller is deleted", begin: loseController, fires: []string{"KilnOperatorDown", "KubeOvnControllerAbsent"}},
	{name: "a subnet has one address, and a pod has it", begin: fillSubnet, fires: []string{"KubeOvnSubnetIPExhaustion"}},
	{
		name: "the gateway node of a subnet is cut off from the API server", begin: loseGateway, fires: []string{"KilnGatewayMoved"},
	},
	{name: "ovs-vswitchd is stopped", begin: stopDaemon("ovs-vswitchd"), fires: []string{"KilnOpenVSwitchNotScraped", "KilnComponentNotReady"}},
	{
		name: "the database server of Open vSwitch is stopped", fires: []string{"KubeOvnOvsDown", "KilnOpenVSwitchDown"},
		begin: func(ctx context.Context) func(context.Context) {
			return stopProcess(ctx, suite.Workers[0], "pgrep -f '^/usr/sbin/ovsdb-server /etc/openvswitch'")
		},
	},
	{name: "ovn-controller is stopped", begin: stopDaemon("ovn-controller"), fires: []string{"KubeOvnOvnControllerDown"}},
	{name: "the API server is cut off from pods", begin: cutPodsFromAPIServer, fires: []string{"KubeOvnApiserverUnhealthy"}},
	{name: "DNS is stopped", begin: stopDNS, fires: []string{"KubeOvnInternalDNSUnhealthy"}},
	{
		name: "the only member of the northbound database is stalled", fires: []string{"KilnDatabaseMemberDown", "KilnDatabaseWithoutLeader", "KilnNotAvailable"},
		begin: func(ctx context.Context) func(context.Context) {
			file := strings.TrimSuffix(trialDatabases[0].file, ".db")
			return stopProcess(ctx, controlPlane(), fmt.Sprintf("pgrep -f '^[^ ]*ovsdb-server .*/%s[.]'", file))
		},
	},
	{
		name: "ovn-northd is stopped", fires: []string{"KilnNorthdNotActive"},
		begin: func(ctx context.Context) func(context.Context) {
			return stopProcess(ctx, activeNorthd(ctx).Spec.NodeName, "pidof ovn-northd")
		},
	},
	{
		name: "kube-ovn-monitor does not reach ovn-northd", fires: []string{"KilnMonitorTargetDown"},
		begin: func(ctx context.Context) func(context.Context) {
			return cutOff(ctx, []string{"tcp dport 6655"}, nil, activeNorthd(ctx).Spec.NodeName)
		},
	},
	{
		name: "the port of another system has the name of a pod's port", fires: []string{"KilnRowsRefused"},
		begin: func(ctx context.Context) func(context.Context) {
			makeNamespace(ctx, faultsNamespace)
			DeferCleanup(func(ctx SpecContext) { deleteNamespace(ctx, faultsNamespace) }, NodeTimeout(2*time.Minute))
			return refusedPort(ctx, func() {})
		},
	},
	{
		name: "a Subnet overlaps another one", fires: []string{"KilnObjectsNotReady"},
		begin: func(ctx context.Context) func(context.Context) {
			return during(ctx, alertsSubnet("overlaps", "10.16.128.0/24"))
		},
	},
	{
		name: "a node does not reach the southbound database", fires: []string{"KilnChassisDisconnected"},
		begin: func(ctx context.Context) func(context.Context) {
			return cutOff(ctx, []string{"tcp sport 6642"}, []string{"tcp dport 6642"}, suite.Workers[0])
		},
	},
}

var _ = Describe("alerts", Label("alerts", disruptive, mayRestart), Ordered, ContinueOnFailure, func() {
	var get page.Getter
	report := &strings.Builder{}
	BeforeAll(func(ctx SpecContext) {
		get = startPrometheus(ctx, fasterRules())
		makeNamespace(ctx, alertsNamespace)
		DeferCleanup(func(ctx SpecContext) { deleteNamespace(ctx, alertsNamespace) }, NodeTimeout(3*time.Minute))
		fmt.Fprintf(report, "| fault | alert | fires after | resolves after |\n|---|---|---|---|\n")
	}, NodeTimeout(8*time.Minute))
	AfterAll(func() {
		GinkgoWriter.Println(report)
		if path := os.Getenv(alertsReport); path != "" {
			Expect(os.WriteFile(path, []byte(report.String()), 0o644)).To(Succeed())
		}
	})

	for _, f := range alertFaults {
		It("fire while "+f.name, func(ctx SpecContext) {
			Eventually(firing).WithContext(ctx).WithArguments(get).WithTimeout(3 * time.Minute).WithPolling(time.Second).Should(BeEmpty())
			end := f.begin(ctx)
			after := map[string]time.Duration{}
			begun := time.Now()
			Eventually(func(g Gomega) {
				now, err := firing(ctx, get)
				g.Expect(err).NotTo(HaveOccurred())
				for _, alert := range now {
					if after[alert] == 0 {
						after[alert] = time.Since(begun)
					}
				}
				for _, alert := range f.fires {
					g.Expect(after).To(HaveKey(alert))
				}
			}).WithContext(ctx).WithTimeout(4 * time.Minute).WithPolling(time.Second).Should(Succeed())
			end(ctx)
			ended := time.Now()
			resolved := map[string]time.Duration{}
			Eventually(func(g Gomega) {
				now, err := firing(ctx, get)
				g.Expect(err).NotTo(HaveOccurred())
				for alert := range after {
					if !slices.Contains(now, alert) && resolved[alert] == 0 {
						resolved[alert] = time.Since(ended)
					}
				}
				g.Expect(now).To(BeEmpty())
			}).WithContext(ctx).WithTimeout(4 * time.Minute).WithPolling(time.Second).Should(Succeed())
			for _, alert := range slices.Sorted(maps.Keys(after)) {
				fmt.Fprintf(report, "| %s | %s | %.0f s | %.0f s |\n", f.name, alert, after[alert].Seconds(), resolved[alert].Seconds())
			}
		}, SpecTimeout(12*time.Minute))
	}
})

// firing returns the names of the alerts that fire.
func firing(ctx context.Context, get page.Getter) ([]string, error) {
	series, err := get.Instant(ctx, `group by (alertname) (ALERTS{alertstate="firing"})`)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, s := range series {
		names = append(names, s.Labels["alertname"])
	}
	slices.Sort(names)
	return names, nil
}

var ranges = regexp.MustCompile(`\[(\w+)\]`)

// fasterRules returns the alerts with shortened durations.
func fasterRules() string {
	GinkgoHelper()
	factor := 20
	if text := os.Getenv(alertsFaster); text != "" {
		var err error
		factor, err = strconv.Atoi(text)
		Expect(err).NotTo(HaveOccurred(), alertsFaster)
	}
	shorter := func(text string, least time.Duration) string {
		d, err := time.ParseDuration(text)
		Expect(err).NotTo(HaveOccurred(), "a duration of an alert")
		return fmt.Sprintf("%ds", int(max(least, d/time.Duration(factor)).Seconds()))
	}
	file := alertRules()
	for _, group := range file.Groups {
		for i := range group.Rules {
			rule := &group.Rules[i]
			if rule.For != "" {
				rule.For = shorter(rule.For, time.Second)
			}
			rule.Expr = ranges.ReplaceAllStringFunc(rule.Expr, func(text string) string {
				return "[" + shorter(ranges.FindStringSubmatch(text)[1], leastRange) + "]"
			})
		}
	}
	text, err := yaml.Marshal(file)
	Expect(err).NotTo(HaveOccurred())
	return string(text)
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

// loseGateway cuts the gateway node of a subnet off from the API server, so that its Lease expires.
func loseGateway(ctx context.Context) func(context.Context) {
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
	restore := cutOff(ctx, []string{"tcp sport 6443"}, []string{"tcp dport 6443"}, suite.Workers[0])
	return func(ctx context.Context) {
		restore(ctx)
		remove(ctx)
	}
}
