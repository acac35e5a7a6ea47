// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package envcheck

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

// hostFiles returns the file system of a process on a node that fits, with changes. A file with the content "-" does not exist.
func hostFiles(changes map[string]string) fstest.MapFS {
	host := fstest.MapFS{}
	fits := map[string]string{
		"proc/sys/kernel/osrelease":               "6.1.0-test\n",
		"proc/sys/kernel/modules_disabled":        "0\n",
		"proc/modules":                            "openvswitch 1 0 - Live 0x0\nnf_conntrack 1 0 - Live 0x0\nnf_tables 1 0 - Live 0x0\nveth 1 0 - Live 0x0\ngeneve 1 0 - Live 0x0\n",
		"host/modules/6.1.0-test/modules.dep":     "kernel/net/openvswitch/openvswitch.ko.xz: kernel/net/nf_conntrack.ko.xz\nkernel/drivers/net/geneve.ko:\nkernel/net/nf-tables.ko.zst:\nkernel/veth.ko:\n",
		"host/modules/6.1.0-test/modules.builtin": "kernel/net/netfilter/nf_conntrack.ko\n",
		"proc/sys/net/ipv6/conf/all/forwarding":   "1\n",
		"proc/sys/net/ipv4/ip_forward":            "1\n",
		"proc/sys/net/ipv4/conf/all/rp_filter":    "1\n",
		"proc/sys/net/ipv4/conf/ovn0/rp_filter":   "2\n",
		"proc/sys/net/ipv6/conf/eth0/forwarding":  "1\n",
		"proc/sys/net/ipv6/conf/eth0/accept_ra":   "2\n",
		"proc/sys/net/netfilter/nf_conntrack_max": "131072\n",
		"proc/net/ipv6_route":                     strings.Repeat("0", 32) + " 00 " + strings.Repeat("0", 32) + " 00 fe80000000000000 00000400 00000001 00000000 00450003 eth0\n",
		"proc/net/tcp":                            "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 1 1\n   1: 0100007F:29A9 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 2 1\n",
		"host/cni/01-kube-ovn.conflist":           "{}",
		"host/cni/10-other.conflist":              "{}",
		"host/cni/00-notes.txt":                   "",
	}
	for _, files := range []map[string]string{fits, changes} {
		for name, content := range files {
			host[name] = &fstest.MapFile{Data: []byte(content)}
			if content == "-" {
				delete(host, name)
			}
		}
	}
	return host
}

func nodeSettings(change func(*NodeSettings)) NodeSettings {
	s := NodeSettings{
		Modules: []string{"openvswitch", "geneve", "nf_conntrack", "nf_tables", "veth"}, CNIFile: "01-kube-ovn.conflist", TunnelType: v1alpha1.TunnelGeneve,
		Ports: []NodePort{{"tcp", 10665}, {"udp", 6081}}, Installed: true, IPv6: true,
	}
	if change != nil {
		change(&s)
	}
	return s
}

func TestCheckNode(t *testing.T) {
	end := TunnelEnd{"eth0", netip.MustParseAddr("192.0.2.1"), 1500}
	const route = "00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe80000000000000 00000400 00000001 00000000 "
	unloaded := map[string]string{"proc/modules": ""}
	and := func(of map[string]string, more ...string) map[string]string {
		all := map[string]string{}
		for k, v := range of {
			all[k] = v
		}
		for i := 0; i < len(more); i += 2 {
			all[more[i]] = more[i+1]
		}
		return all
	}
	for _, tt := range []struct {
		name     string
		files    map[string]string
		settings func(*NodeSettings)
		end      TunnelEnd
		want     map[Level]string // the findings other than OK contain these texts
	}{
		{name: "a node that fits"},
		{name: "modules that the kernel loads itself", files: unloaded},
		{name: "the same, but it may not", files: and(unloaded, "proc/sys/kernel/modules_disabled", "1\n"), want: map[Level]string{Failed: "openvswitch, geneve, nf_conntrack, nf_tables, veth are not loaded, and kernel.modules_disabled is 1"}},
		{name: "no openvswitch", files: and(unloaded, "host/modules/6.1.0-test/modules.dep", "kernel/geneve.ko:\nkernel/nf_tables.ko:\nkernel/veth.ko:\n"), want: map[Level]string{Failed: "has no openvswitch: install them, or use nodes.datapath Userspace"}},
		{name: "no geneve", files: and(unloaded, "host/modules/6.1.0-test/modules.dep", "kernel/openvswitch.ko:\nkernel/nf_tables.ko:\nkernel/veth.ko:\n"), want: map[Level]string{Failed: "has no geneve: install them"}},
		{name: "modules that cannot be seen", files: and(unloaded, "host/modules/6.1.0-test/modules.dep", "-", "host/modules/6.1.0-test/modules.builtin", "-"), want: map[Level]string{Warning: "run `modprobe -a openvswitch geneve nf_conntrack nf_tables veth`"}},
		{name: "modules that are built in, seen by their devices", files: and(unloaded, "host/modules/6.1.0-test/modules.dep", "-", "host/modules/6.1.0-test/modules.builtin", "-",
			"sys/class/net/ovs-system", "", "sys/class/net/genev_sys_6081", "", "sys/module/nf_conntrack/x", "", "sys/module/nf_tables/x", "", "sys/module/veth/x", "")},
		{name: "no IPv6", files: map[string]string{"proc/sys/net/ipv6/conf/all/forwarding": "-"}, want: map[Level]string{Failed: "the kernel has no IPv6"}},
		{name: "no IPv6, and none wanted", files: map[string]string{"proc/sys/net/ipv6/conf/all/forwarding": "-"}, settings: func(s *NodeSettings) { s.IPv6 = false }},
		{name: "no forwarding", files: map[string]string{"proc/sys/net/ipv4/ip_forward": "0\n"}, want: map[Level]string{Failed: "net.ipv4.ip_forward is 0"}},
		{name: "no forwarding before the installation", files: map[string]string{"proc/sys/net/ipv4/ip_forward": "0\n", "proc/sys/net/netfilter/nf_conntrack_max": "1000"}, settings: func(s *NodeSettings) { s.Installed = false }},
		{name: "no forwarding of IPv6", files: map[string]string{"proc/sys/net/ipv6/conf/all/forwarding": "0\n"}, want: map[Level]string{Failed: "net.ipv6.conf.all.forwarding is 0"}},
		{name: "strict rp_filter of ovn0", files: map[string]string{"proc/sys/net/ipv4/conf/ovn0/rp_filter": "1\n"}, want: map[Level]string{Failed: "net.ipv4.conf.ovn0.rp_filter is strict"}},
		{name: "strict rp_filter of all", files: map[string]string{"proc/sys/net/ipv4/conf/ovn0/rp_filter": "0\n"}, want: map[Level]string{Failed: "net.ipv4.conf.ovn0.rp_filter is strict"}},
		{name: "few connections", files: map[string]string{"proc/sys/net/netfilter/nf_conntrack_max": "65536\n"}, want: map[Level]string{Warning: "nf_conntrack_max is 65536"}},
		{name: "ignored routers", files: map[string]string{"proc/sys/net/ipv6/conf/eth0/accept_ra": "1\n"}, want: map[Level]string{Warning: "set net.ipv6.conf.eth0.accept_ra=2"}},
		{name: "a static default route", files: map[string]string{"proc/sys/net/ipv6/conf/eth0/accept_ra": "1\n", "proc/net/ipv6_route": route + "00000003 eth0\n"}},
		{name: "a route with the name of a directory", files: map[string]string{"proc/net/ipv6_route": route + "00450003 ../..\n"}},
		{name: "a used port", files: map[string]string{"proc/net/tcp6": "0: 00000000000000000000000000000000:29A9 0:0 0A 0:0 0:0 0 33 0 1\n"}, want: map[Level]string{Failed: "a program of user 33 has port 10665/tcp"}},
		{name: "a used tunnel port", files: map[string]string{"proc/net/udp": "0: 00000000:17C1 00000000:0000 07 0:0 0:0 0 0 0 1\n"}, want: map[Level]string{Failed: "`ss -lnpu sport = :6081`"}},
		{name: "the own tunnel port", files: map[string]string{"proc/net/udp": "0: 00000000:17C1 00000000:0000 07 0:0 0:0 0 0 0 1\n"}, settings: func(s *NodeSettings) { s.Ports = s.Ports[:1] }},
		{name: "another CNI plugin", files: map[string]string{"host/cni/00-calico.conflist": "{}", "host/cni/01-a.conf": "{}"}, want: map[Level]string{Failed: "uses 00-calico.conflist, 01-a.conf instead of 01-kube-ovn.conflist"}},
		{name: "Multus", files: map[string]string{"host/cni/00-multus.conf": `{"type": "multus-shim"}`}},
		{name: "no directory", files: map[string]string{"host/cni/01-kube-ovn.conflist": "-", "host/cni/10-other.conflist": "-", "host/cni/00-notes.txt": "-"}, want: map[Level]string{Warning: "agent.cniConfDirectory cannot be read"}},
		{name: "iptables-legacy", files: map[string]string{"proc/net/ip6_tables_names": "nat\nfilter\n"}, want: map[Level]string{Manual: "iptables-legacy -S INPUT"}},
		{name: "other tables of iptables-legacy", files: map[string]string{"proc/net/ip_tables_names": "nat\n"}},
		{name: "too large an MTU of pods", settings: func(s *NodeSettings) { s.PodMTU = 1450 }, want: map[Level]string{Failed: "eth0 has an MTU of 1500, and packets of pods with network.mtu 1450 need 1508 in the tunnel: lower network.mtu to 1442"}},
		{name: "no tunnel interface", end: TunnelEnd{}, settings: func(s *NodeSettings) { s.TunnelInterface = "eth7" }, want: map[Level]string{Failed: `nodes.tunnelInterface is "eth7"`}},
	} {
		if tt.name != "no tunnel interface" {
			tt.end = end
		}
		found := CheckNode(hostFiles(tt.files), tt.end, nodeSettings(tt.settings))
		problems := map[Level]string{}
		for _, f := range found {
			if f.Level != OK {
				problems[f.Level] += f.Message
			}
		}
		for level, text := range problems {
			if tt.want[level] == "" || !strings.Contains(text, tt.want[level]) {
				t.Errorf("%s: %s: %s, want %q", tt.name, level, text, tt.want[level])
			}
		}
		if len(problems) != len(tt.want) {
			t.Errorf("%s: the findings are %v", tt.name, found)
		}
	}
}

func TestFirewall(t *testing.T) {
	for _, tt := range []struct {
		name, output string
		level        Level
		want         string
	}{
		{"none", `{"nftables": [{"metainfo": {"version": "1.0.6"}}, {"table": {"family": "inet", "name": "kiln"}}, {"chain": {"family": "ip", "table": "filter", "name": "INPUT", "hook": "input", "policy": "accept"}}]}`, OK, "no firewalld"},
		{"firewalld", `{"nftables": [{"chain": {"family": "inet", "table": "firewalld", "name": "filter_INPUT", "hook": "input", "policy": "accept"}}]}`, Warning, "`firewall-cmd --permanent --add-port=6081/udp`"},
		{"iptables", `{"nftables": [{"chain": {"family": "ip", "table": "filter", "name": "INPUT", "hook": "input", "policy": "drop"}}, {"chain": {"family": "ip", "table": "filter", "name": "FORWARD", "hook": "forward", "policy": "drop"}}]}`,
			Warning, "chain INPUT of table ip filter drops packets that no rule accepts: accept port 6081/udp"},
		{"no JSON", "Error", Warning, "cannot be read"},
	} {
		found := Firewall([]byte(tt.output), nodeSettings(nil))
		if len(found) != 1 || found[0].Level != tt.level || !strings.Contains(found[0].Message, tt.want) {
			t.Errorf("%s: %v", tt.name, found)
		}
	}
}

func TestTunnelOf(t *testing.T) {
	a := netip.MustParseAddr
	interfaces := []Interface{
		{"lo", 65536, []netip.Addr{a("127.0.0.1")}}, {"eth0", 1500, []netip.Addr{a("fe80::1"), a("192.0.2.1"), a("2001:db8::1")}}, {"eth1", 9000, []netip.Addr{a("fe80::2"), a("198.51.100.1")}}, {"eth2", 1500, nil},
	}
	bridged := append(slices.Clone(interfaces), Interface{"br-phy", 9000, []netip.Addr{a("198.51.100.1")}})
	for _, tt := range []struct {
		name       string
		interfaces []Interface
		configured string
		addresses  []netip.Addr
		want       TunnelEnd
	}{
		{"by InternalIP", interfaces, "", []netip.Addr{a("192.0.2.1"), a("2001:db8::1")}, TunnelEnd{"eth0", a("192.0.2.1"), 1500}},
		{"configured", interfaces, "eth1", []netip.Addr{a("192.0.2.1")}, TunnelEnd{"eth1", a("198.51.100.1"), 9000}},
		{"in the bridge", bridged, "eth2", nil, TunnelEnd{"br-phy", a("198.51.100.1"), 9000}},
		{"without an address", interfaces, "eth2", []netip.Addr{a("192.0.2.1")}, TunnelEnd{}},
		{"of another machine", interfaces, "", []netip.Addr{a("192.0.2.2")}, TunnelEnd{}},
	} {
		if got := TunnelOf(NodeSettings{TunnelInterface: tt.configured, Addresses: tt.addresses}, tt.interfaces); got != tt.want {
			t.Errorf("%s: %+v", tt.name, got)
		}
	}
}

func TestLargestTunnelPacket(t *testing.T) {
	v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	for _, tt := range []struct {
		podMTU int
		kind   v1alpha1.TunnelType
		end    TunnelEnd
		want   int
	}{
		{0, v1alpha1.TunnelGeneve, TunnelEnd{"eth0", v4, 1500}, 1458},
		{0, v1alpha1.TunnelGeneve, TunnelEnd{"eth0", v6, 1500}, 1458},
		{0, v1alpha1.TunnelVXLAN, TunnelEnd{"eth0", v4, 9000}, 9000},
		{1400, v1alpha1.TunnelVXLAN, TunnelEnd{"eth0", v4, 1500}, 1450},
		{1400, v1alpha1.TunnelGeneve, TunnelEnd{"eth0", v6, 1500}, 1478},
		{1400, v1alpha1.TunnelGeneve, TunnelEnd{}, 0},
	} {
		if got := (NodeSettings{PodMTU: tt.podMTU, TunnelType: tt.kind}).LargestTunnelPacket(tt.end); got != tt.want {
			t.Errorf("%+v: %d", tt, got)
		}
	}
}

func TestSettingsOf(t *testing.T) {
	pod := func(node, component string, port int32) corev1.Pod {
		return corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{v1alpha1.PartOfLabel: v1alpha1.PartOf, v1alpha1.ComponentLabel: component}},
			Spec:       corev1.PodSpec{NodeName: node, HostNetwork: true, Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{ContainerPort: port}}}}},
		}
	}
	c := &Cluster{Pods: []corev1.Pod{pod("cp", "kiln-operator", 10670), pod("cp", "ovn-central-nb", 6641), pod("worker", "kube-ovn-cni", 10665), pod("worker", "ovs-ovn", 10660)}}
	node := func(name string, central bool) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}}}
		if central {
			n.Labels = map[string]string{v1alpha1.ControlPlaneLabel: ""}
		}
		return n
	}
	spec := &v1alpha1.OVNClusterSpec{Network: v1alpha1.Network{TunnelType: v1alpha1.TunnelVXLAN, MTU: 1400, PodCIDRs: []string{"10.16.0.0/16", "fd00::/64"}}, Agent: v1alpha1.Agent{CNIConfPriority: "05"}}
	s := SettingsOf(c, spec, node("cp", true))
	numbers := func(s NodeSettings) (all []uint16) {
		for _, p := range s.Ports {
			all = append(all, p.Number)
		}
		return all
	}
	if got := numbers(s); slices.Contains(got, 6641) || slices.Contains(got, 10670) || !slices.Contains(got, 10665) || !slices.Contains(got, 4789) {
		t.Errorf("the operator's port is not free, and databases run: ports %v", got)
	}
	if s.Installed || !s.IPv6 || s.CNIFile != "05-kube-ovn.conflist" || s.PodMTU != 1400 || !reflect.DeepEqual(s.Modules, []string{"openvswitch", "vxlan", "nf_conntrack", "nf_tables", "veth"}) {
		t.Errorf("%+v", s)
	}
	if s = SettingsOf(c, &v1alpha1.OVNClusterSpec{Nodes: v1alpha1.Nodes{Datapath: v1alpha1.DatapathUserspace}}, node("worker", false)); !s.Installed || s.IPv6 || len(s.Ports) != 0 || s.Modules[0] != "tun" {
		t.Errorf("%+v", s)
	}
	if got := numbers(SettingsOf(c, spec, node("new", true))); !slices.Contains(got, 6641) || !slices.Contains(got, 10665) {
		t.Errorf("a node without Kiln: ports %v", got)
	}
	if got := numbers(SettingsOf(c, spec, node("new", false))); slices.Contains(got, 6641) {
		t.Errorf("a node without databases: ports %v", got)
	}
}

func TestMergeNodes(t *testing.T) {
	f := Finding{Failed, subjectPorts, "used"}
	merged := MergeNodes(map[string][]Finding{"b": {f}, "a": {f, {OK, subjectModules, "loaded"}}})
	want := []Finding{{OK, subjectModules, "loaded (nodes a)"}, {Failed, subjectPorts, "used (nodes a, b)"}}
	if !reflect.DeepEqual(merged, want) {
		t.Errorf("%v", merged)
	}
	r := newReport([]Finding{{Manual, subjectPorts, "by hand"}, {Failed, subjectPorts, "declared"}})
	if r.AddNodes(want, false); len(r.Findings) != 4 {
		t.Errorf("some nodes: %v", r.Findings)
	}
	if r.AddNodes(nil, true); len(r.Findings) != 3 || r.Findings[0].Level != Failed || r.Findings[2].Level != OK {
		t.Errorf("all nodes: %v", r.Findings)
	}
}
