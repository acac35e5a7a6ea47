// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/test/cluster"
)

// A pod can send only from its own addresses, and receives only packets for itself.
var _ = Describe("a hostile tenant in a common subnet", Ordered, ContinueOnFailure, func() {
	subnet := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "common-link"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.85.0.0/24,fd00:10:85::/64"}}
	// The attacker and the neighbour are on one node, the victim is on the other.
	var victim, neighbour, attacker *corev1.Pod

	BeforeAll(func(ctx SpecContext) {
		for _, name := range []string{attackerNamespace, victimNamespace} {
			makeNamespace(ctx, name)
			DeferCleanup(func(ctx SpecContext) { deleteNamespace(ctx, name) }, NodeTimeout(4*time.Minute))
		}
		Expect(suite.Objects.Create(ctx, subnet)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { deleteObjects(ctx, subnet) }, NodeTimeout(2*time.Minute))
		in := func(namespace, name string, worker int) *corev1.Pod {
			GinkgoHelper()
			pod := cluster.Server(namespace, name, suite.Workers[worker])
			pod.Annotations = map[string]string{kubeovnv1.AnnotationLogicalSwitch.Key(): subnet.Name, kubeovnv1.AnnotationPortSecurity.Key(): "false"}
			pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: new(true)} // to change its sysctls
			pod, err := suite.Cluster.Run(ctx, pod)
			Expect(err).NotTo(HaveOccurred())
			DeferCleanup(func(ctx SpecContext) { removePods(ctx, namespace, name) }, NodeTimeout(time.Minute))
			return pod
		}
		victim, neighbour, attacker = in(victimNamespace, "victim", 0), in(victimNamespace, "neighbour", 1), in(attackerNamespace, "attacker", 1)
	}, NodeTimeout(3*time.Minute))

	It("gives no pod a router by its advertisements", func(ctx SpecContext) {
		routes := func(ctx context.Context, pod *corev1.Pod) (string, error) {
			return suite.Cluster.Exec(ctx, pod, "ip", "-6", "route", "show", "proto", "ra")
		}
		advertise := func(g Gomega, ctx context.Context) {
			_, err := suite.Cluster.Exec(ctx, attacker, "bash", "-c", advertisement)
			g.Expect(err).NotTo(HaveOccurred())
		}
		// The neighbour accepts router advertisements, which proves that the attacker's advertisements arrive.
		_, err := suite.Cluster.Exec(ctx, neighbour, "sh", "-c", "echo 1 >/proc/sys/net/ipv6/conf/eth0/accept_ra")
		Expect(err).NotTo(HaveOccurred())
		Eventually(func(g Gomega) {
			advertise(g, ctx)
			g.Expect(routes(ctx, neighbour)).To(ContainSubstring("default"))
		}).WithContext(ctx).WithTimeout(20 * time.Second).Should(Succeed())
		advertise(Default, ctx)
		Consistently(routes).WithContext(ctx).WithArguments(victim).WithTimeout(2 * time.Second).Should(BeEmpty())
		Expect(suite.Cluster.Exec(ctx, victim, "ip", "-6", "address")).NotTo(ContainSubstring("fd00:bad:"))
	}, SpecTimeout(2*time.Minute))

	It("hears no DHCP request where OVN answers", func(ctx SpecContext) {
		changeSubnet(ctx, subnet.Name, func(s *kubeovnv1.SubnetSpec) { s.EnableDHCP = true })
		for _, family := range []string{"-4", "-6"} {
			Expect(overhears(ctx, attacker, victim, family)).To(BeEmpty(), family)
		}
		changeSubnet(ctx, subnet.Name, func(s *kubeovnv1.SubnetSpec) { s.EnableDHCP = false })
		for _, family := range []string{"-4", "-6"} { // the check can fail
			Eventually(overhears).WithContext(ctx).WithArguments(attacker, victim, family).WithTimeout(time.Minute).ShouldNot(BeEmpty(), family)
		}
	}, SpecTimeout(3*time.Minute))

	It("sends with no other hardware address", Label(smoke), func(ctx SpecContext) {
		expectReach(ctx, attacker, victim)
		own, err := suite.Cluster.Exec(ctx, attacker, "cat", "/sys/class/net/eth0/address")
		Expect(err).NotTo(HaveOccurred())
		for _, address := range []string{"02:00:00:00:00:99", hardwareAddress(victim)} {
			setHardwareAddress(ctx, attacker, address)
			for _, t := range targetsOf(attacker, victim) {
				Expect(arrived(ctx, attacker, []target{t})).To(BeEmpty(), address)
			}
			expectReach(ctx, neighbour, victim)
		}
		setHardwareAddress(ctx, attacker, own)
		expectReach(ctx, attacker, victim)
	}, SpecTimeout(3*time.Minute))

	It("sends from its own addresses only", Label(smoke), func(ctx SpecContext) {
		stolen := cluster.PodAddrs(victim)
		foreign := append([]netip.Addr{netip.MustParseAddr("10.85.0.1"), netip.MustParseAddr("fd00:10:85::1")}, netip.MustParseAddr(suite.NodeAddresses[0]))
		take(ctx, attacker, true, foreign)
		for _, a := range foreign {
			Expect(hears(ctx, neighbour, attacker, a)).To(BeEmpty(), "%s", a)
		}
		take(ctx, attacker, false, foreign)
		for _, enforced := range []bool{true, false} { // without enforcement the same attack succeeds: the check can fail
			if !enforced {
				changeSubnet(ctx, subnet.Name, func(s *kubeovnv1.SubnetSpec) { s.PortSecurity = kubeovnv1.PortSecurityRequested })
			}
			take(ctx, attacker, true, stolen) // by gratuitous ARP and unsolicited neighbour advertisements
			for _, a := range stolen {
				heard := func() (string, error) { return hears(ctx, neighbour, attacker, a) }
				if enforced {
					Expect(heard()).To(BeEmpty(), "%s", a)
					Expect(whoAnswers(ctx, neighbour, a)).To(Equal(victim.Name))
				} else {
					Eventually(heard).WithContext(ctx).WithTimeout(20*time.Second).Should(ContainSubstring("spoofed"), "%s", a)
				}
			}
			take(ctx, attacker, false, stolen)
		}
	}, SpecTimeout(4*time.Minute))
})

// advertisement sends a router advertisement (RFC 4861, section 4.2) to all nodes: a default route for half an hour, an MTU of 1280
// bytes and a prefix for addresses. The kernel fills in the checksum.
const advertisement = `printf '\x86\0\0\0\x40\0\x07\x08\0\0\0\0\0\0\0\0' >/tmp/ra
printf '\x05\x01\0\0\0\0\x05\0' >>/tmp/ra
printf '\x03\x04\x40\xc0\0\0\x0e\x10\0\0\x0e\x10\0\0\0\0\xfd\0\x0b\xad\0\0\0\0\0\0\0\0\0\0\0\0' >>/tmp/ra
socat -u OPEN:/tmp/ra 'IP6-SENDTO:[ff02::1%eth0]:58,setsockopt-int=41:18:255'`

// overhears returns the DHCP requests of client that listener receives.
func overhears(ctx context.Context, listener, client *corev1.Pod, family string) (string, error) {
	const ready = "listening on"
	var asking errgroup.Group
	asking.Go(func() error {
		_, err := suite.Cluster.Exec(ctx, client, "sh", "-c", "sleep 1; timeout 4 dhclient "+family+" -1 -d -sf /bin/true -lf /tmp/overheard -pf /tmp/overheard.pid eth0 2>&1 || true; rm -f /tmp/overheard*")
		return err
	})
	out, err := suite.Cluster.Exec(ctx, listener, "sh", "-c", "timeout 6 tcpdump -n -l -i eth0 'udp port 67 or udp port 547' 2>&1 || true")
	if err := errors.Join(err, asking.Wait()); err != nil {
		return "", err
	}
	if !strings.Contains(out, ready) {
		return "", fmt.Errorf("tcpdump did not start: %s", out)
	}
	var heard []string
	for line := range strings.Lines(out) {
		if strings.Contains(strings.ToLower(line), "dhcp") {
			heard = append(heard, line)
		}
	}
	return strings.Join(heard, ""), nil
}

// hardwareAddress returns the MAC address of a pod's interface.
func hardwareAddress(pod *corev1.Pod) string {
	return pod.Annotations[kubeovnv1.AnnotationMACAddress.Key()]
}

// setHardwareAddress changes the MAC address of a pod's interface, so that it differs from the port's address.
func setHardwareAddress(ctx context.Context, pod *corev1.Pod, address string) {
	GinkgoHelper()
	_, err := suite.Cluster.Exec(ctx, pod, "ip", "link", "set", "eth0", "address", address)
	Expect(err).NotTo(HaveOccurred())
}

// hears returns the data that listener receives on a UDP port while sender sends there from a source address.
func hears(ctx context.Context, listener, sender *corev1.Pod, source netip.Addr) (string, error) {
	to, _ := cluster.InFamilyOf(cluster.PodAddrs(listener), source)
	const port = "9999"
	var heard string
	var listening errgroup.Group
	listening.Go(func() (err error) {
		heard, err = suite.Cluster.Exec(ctx, listener, "sh", "-c", "timeout 3 socat -u UDP6-RECV:"+port+" - || true")
		return err
	})
	listening.Go(func() error {
		command := "for i in 1 2 3 4 5 6 7 8 9 10; do echo spoofed; sleep 0.2; done | socat -u - UDP-SENDTO:" + netip.AddrPortFrom(to, 9999).String() +
			",bind=" + netip.AddrPortFrom(source, 0).String() + " || true"
		_, err := suite.Cluster.Exec(ctx, sender, "sh", "-c", command)
		return err
	})
	err := listening.Wait()
	return heard, err
}
