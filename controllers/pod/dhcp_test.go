// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

func TestPodsAnswerToDHCPAsTheirSubnetSays(t *testing.T) {
	w := newWorld(t)
	s := w.subnet("ovn-default", "10.16.0.0/24,fd00:10:16::/112", func(s *kubeovnv1.SubnetSpec) { s.EnableDHCP = true })
	process := w.start()
	both, one := w.pod("default", "both"), w.pod("default", "one", "ip_family", "ipv6")
	expect := func(p *corev1.Pod, v4, v6 int) {
		t.Helper()
		w.Eventually(func() string {
			port := w.portNow(p)
			if got4, got6 := len(port.Strings("dhcpv4_options")), len(port.Strings("dhcpv6_options")); got4 != v4 || got6 != v6 {
				return fmt.Sprintf("pod %s refers to %d rows of DHCPv4 and %d of DHCPv6, want %d and %d", p.Name, got4, got6, v4, v6)
			}
			return ""
		})
	}
	expect(both, 1, 1)
	expect(one, 0, 1)
	for _, enable := range []bool{false, true} {
		w.Change(s, func() { s.Spec.EnableDHCP = enable })
		w.InForce(s, process)
		n := map[bool]int{true: 1}[enable]
		expect(both, n, n)
		expect(one, 0, n)
	}
}

func TestDHCPOptionsOfAPod(t *testing.T) {
	w := newWorld(t)
	s := w.subnet("ovn-default", "10.16.0.0/24,fd00:10:16::/112", func(s *kubeovnv1.SubnetSpec) {
		s.EnableDHCP, s.DHCPV4Options, s.MTU = true, "lease_time=600,dns_server=10.96.0.10", 1400
	})
	process := w.start()
	wrong := newPod("default", "wrong", "dhcp-v6-options", "lease_time=9")
	w.Create(wrong)
	w.warned(wrong, "there is no option lease_time")
	plain, own := w.pod("default", "plain"), w.pod("default", "own", "dhcp-v4-options", "lease_time=60")
	expect := func(p *corev1.Pod, want string) {
		t.Helper()
		w.Eventually(func() string {
			of, port := map[string]string{}, w.portNow(p)
			for uuid, row := range w.Database.Rows("DHCP_Options") {
				options := row["options"].(map[string]string)
				of[uuid] = fmt.Sprintf("%s %s %s", options["lease_time"], options["dns_server"], options["mtu"])
			}
			refs := port.Strings("dhcpv4_options")
			if want == "" && len(refs) == 0 || len(refs) == 1 && of[refs[0]] == want {
				return ""
			}
			return fmt.Sprintf("pod %s has %v of %v, want %s", p.Name, refs, of, want)
		})
	}
	expect(own, "60 10.96.0.10 1400")
	if n := len(w.port(own).Strings("dhcpv6_options")); n != 1 {
		t.Errorf("%d rows of DHCPv6, which the subnet answers", n)
	}
	w.Change(s, func() { s.Spec.DHCPV4Options, s.Spec.EnableDHCP = "", false })
	w.InForce(s, process)
	expect(own, "60  1400")
	expect(plain, "")
	w.Change(own, func() { own.Annotations["ovn.kubernetes.io/dhcp-v4-options"] = "dns_server=10.96.0.11" })
	expect(own, "3600 10.96.0.11 1400")
	w.Change(own, func() { own.Annotations["ovn.kubernetes.io/dhcp-v4-options"] = "dns_server=nowhere" })
	w.warnedOf(own, "DHCPOptionsInvalid", "dns_server")
	w.Change(own, func() { delete(own.Annotations, "ovn.kubernetes.io/dhcp-v4-options") })
	expect(own, "")
	w.Eventually(func() string {
		if rows := w.Database.Rows("DHCP_Options"); len(rows) != 0 {
			return fmt.Sprintf("rows are left: %v", rows)
		}
		return ""
	})
}
