// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	lab "github.com/kiln-net/kiln/hack/lab/cluster"
	"github.com/kiln-net/kiln/hack/lab/topology"
)

// dhclient and the kernel configure eth2 of a node, from the router's dnsmasq.
var _ = Describe("an interface with a DHCP client and router advertisements", Label(timed, "underlay", physical, disruptive), func() {
	network, vlan := topology.VLANs[0], topology.VLANs[1]
	var node string
	var leased []netip.Addr
	provider := &kubeovnv1.ProviderNetwork{}

	BeforeEach(func(ctx SpecContext) {
		node = suite.Workers[0]
		var before string
		Eventually(func() string { before = uplinkState(ctx, node, "eth2"); return before }).WithContext(ctx).WithTimeout(30*time.Second).
			ShouldNot(ContainSubstring("br-net1"), "the bridge of the specs before")
		DeferCleanup(func(ctx SpecContext) {
			exec(ctx, node, "sh", "-c", `kill $(cat /run/eth2.pid); sysctl -qw net.ipv6.conf.eth2.accept_ra=1 net.ipv6.conf.eth2.ra_defrtr_metric=1024
				ip address flush dev eth2 scope global; ip -6 route flush dev eth2 proto ra; ip -6 route del $0 dev eth2 || true`, network.Prefixes[1].String())
			Eventually(uplinkState).WithContext(ctx).WithArguments(node, "eth2").WithTimeout(30 * time.Second).Should(Equal(before))
		}, NodeTimeout(time.Minute))
		// The node's own default routes are better.
		exec(ctx, node, "sysctl", "-qw", "net.ipv6.conf.eth2.accept_ra=2", "net.ipv6.conf.eth2.ra_defrtr_metric=2048")
		exec(ctx, lab.Router, "sh", "-c", "kill $(pidof dnsmasq)") // it advertises when it starts
		Eventually(suite.Node.Exec).WithContext(ctx).WithArguments(node, "dhclient", "-4", "-1", "-e", "IF_METRIC=2048", "-pf", "/run/eth2.pid", "-lf", "/run/eth2.leases", "eth2").
			WithTimeout(time.Minute).Should(BeEmpty())
		Eventually(func() (err error) { leased, err = limitedAddresses(ctx, node, "eth2", network); return err }).WithContext(ctx).WithTimeout(30 * time.Second).Should(Succeed())
	}, NodeTimeout(3*time.Minute))

	It("moves, keeps what it has for more than two leases, and returns when the server and the router no longer answer", func(ctx SpecContext) {
		var list []*watched
		for _, a := range leased {
			list = append(list, &watched{name: "ping to " + a.String(), protocol: icmp, target: netip.AddrPortFrom(a, 0)})
		}
		flows := startWatch(ctx, fromNode(network.HostName()), list)
		*provider = kubeovnv1.ProviderNetwork{ObjectMeta: metav1.ObjectMeta{Name: underlayProvider}, Spec: kubeovnv1.ProviderNetworkSpec{
			DefaultInterface: "eth2", NodeInterface: kubeovnv1.NodeInterfaceAll,
			NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelHostname: node}},
		}}
		connectVLANs(ctx, provider, vlan)
		pod := serve(ctx, vlan.Name, "here", 0)
		Consistently(func() error {
			has, err := limitedAddresses(ctx, node, "br-net1", network)
			if err == nil && fmt.Sprint(has) != fmt.Sprint(leased) {
				err = fmt.Errorf("br-net1 has %v, not %v", has, leased)
			}
			if err != nil {
				return err
			}
			for _, family := range []string{"-4", "-6"} {
				route, err := suite.Node.Exec(ctx, node, "ip", family, "route", "show", "default", "dev", "br-net1")
				if err != nil || route == "" {
					return fmt.Errorf("ip %s: br-net1 has no default route: %w", family, err)
				}
			}
			return nil
		}).WithContext(ctx).WithTimeout(topology.ShortLease*5/2).WithPolling(2*time.Second).Should(Succeed(), "addresses stay on the bridge")
		expectHosts(ctx, pod)
		seen := flows.end(ctx)
		Expect(seen.gapsLongerThan(longestMove)).To(BeEmpty())

		By("no longer answering")
		exec(ctx, lab.Router, "sh", "-c", "kill -STOP $(pidof dnsmasq)")
		resume := func(ctx context.Context) { exec(ctx, lab.Router, "sh", "-c", "kill -CONT $(pidof dnsmasq)") }
		DeferCleanup(func(ctx SpecContext) { resume(ctx) }, NodeTimeout(time.Minute))
		Eventually(func() error { // seconds before the client's lease ends
			_, err := limitedAddresses(ctx, node, "eth2", network)
			return err
		}).WithContext(ctx).WithTimeout(topology.ShortLease + time.Minute).Should(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(provider), provider)).To(Succeed())
			g.Expect(fmt.Sprint(provider.Status.Conditions)).To(ContainSubstring("has renewed"))
		}).WithContext(ctx).WithTimeout(30 * time.Second).Should(Succeed())
		disconnectVLANs(ctx, provider, vlan) // otherwise it moves again
		resume(ctx)
		Eventually(func(g Gomega) { // also if the client begins again
			now, err := limitedAddresses(ctx, node, "eth2", network)
			g.Expect(err).NotTo(HaveOccurred())
			for _, a := range now {
				_, err := suite.Node.Exec(ctx, network.HostName(), "ping", "-c1", "-W1", a.String())
				g.Expect(err).NotTo(HaveOccurred(), a.String())
			}
		}).WithContext(ctx).WithTimeout(2 * time.Minute).Should(Succeed())
		exec(ctx, node, "sh", "-c", "kill -0 $(cat /run/eth2.pid)")
	}, SpecTimeout(15*time.Minute))
})

var inetAddress = regexp.MustCompile(`(?m)inet6? (\S+)/\d+ .*\bdynamic\b.*valid_lft \d+sec`)

// limitedAddresses returns the addresses of a network with a limited lifetime that an interface of a node has, or an error if there is not one for each family.
func limitedAddresses(ctx context.Context, node, link string, network topology.VLAN) (list []netip.Addr, err error) {
	out, err := suite.Node.Exec(ctx, node, "ip", "-o", "address", "show", "dev", link, "scope", "global")
	if err != nil {
		return nil, err
	}
	for _, m := range inetAddress.FindAllStringSubmatch(out, -1) {
		if a, err := netip.ParseAddr(m[1]); err == nil && network.Contains(a) {
			list = append(list, a)
		}
	}
	if len(list) != 2 {
		return nil, fmt.Errorf("%s of %s has:\n%s", link, node, out)
	}
	return list, nil
}
