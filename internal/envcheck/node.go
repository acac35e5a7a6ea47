// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package envcheck

import (
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
)

// NodeSettings are the parts of a spec and of a cluster that the check of a node needs: the input of `kiln netprobe node`.
type NodeSettings struct {
	// Modules are kernel modules that Kiln uses on the node.
	Modules []string `json:"modules"`
	// Ports must be free: Kiln needs them, and none of its pods on the node has them.
	Ports []NodePort `json:"ports,omitempty"`
	// CNIDirectory is agent.cniConfDirectory, and CNIFile the name of Kiln's CNI configuration there.
	CNIDirectory string `json:"cniDirectory"`
	CNIFile      string `json:"cniFile"`
	// IPv6: pods have IPv6 addresses.
	IPv6 bool `json:"ipv6,omitempty"`
	// Installed: Kiln's agent runs on the node, and has set the kernel parameters.
	Installed bool `json:"installed,omitempty"`
	// TunnelInterface is nodes.tunnelInterface, and Addresses are the node's InternalIPs.
	TunnelInterface string       `json:"tunnelInterface,omitempty"`
	Addresses       []netip.Addr `json:"addresses,omitempty"`
	// PodMTU is network.mtu; 0: by the MTU of the tunnel interface.
	PodMTU     int                 `json:"podMTU,omitempty"`
	TunnelType v1alpha1.TunnelType `json:"tunnelType"`
}

// NodePort is a port of a node.
type NodePort struct {
	Protocol string `json:"protocol"` // tcp or udp
	Number   uint16 `json:"number"`
}

// NodeReport is the result of the check of a node.
type NodeReport struct {
	Findings []Finding `json:"findings"`
	// Tunnel is the zero value if there is no such interface.
	Tunnel TunnelEnd `json:"tunnel"`
	// Time is the node's clock.
	Time time.Time `json:"time"`
}

// TunnelEnd is the interface of a node for tunnels.
type TunnelEnd struct {
	Device  string     `json:"device,omitempty"`
	Address netip.Addr `json:"address"`
	MTU     int        `json:"mtu,omitempty"`
}

// nodePorts are hostPorts by the components that use them. The ports of a group are Kiln's own on nodes with a pod of one of its components.
var nodePorts = []struct {
	ports      []uint16
	components []string
	// central: only nodes of the databases need them.
	central bool
}{
	{ports: []uint16{6641, 6642, 6643, 6644, 6649, 6651, 6652, 6655}, components: []string{"ovn-central-nb", "ovn-central-sb", "ovn-central-northd"}, central: true},
	{ports: []uint16{6661, 6662, 6664, 10673, 10660, 10665, 10670, 10671, 10672}, components: []string{"kube-ovn-cni", "ovs-ovn"}},
}

// TunnelPort returns the UDP port of tunnels.
func TunnelPort(t v1alpha1.TunnelType) uint16 {
	if t == v1alpha1.TunnelVXLAN {
		return 4789
	}
	return 6081
}

// SettingsOf returns the settings for a node.
func SettingsOf(c *Cluster, spec *v1alpha1.OVNClusterSpec, node *corev1.Node) NodeSettings {
	s := NodeSettings{
		CNIDirectory: cmp.Or(spec.Agent.CNIConfDirectory, "/etc/cni/net.d"), CNIFile: cmp.Or(spec.Agent.CNIConfPriority, "01") + "-kube-ovn.conflist",
		Addresses: k8s.InternalIPs(node), TunnelInterface: spec.Nodes.TunnelInterface, PodMTU: int(spec.Network.MTU),
		TunnelType: cmp.Or(spec.Network.TunnelType, v1alpha1.TunnelGeneve),
		Modules:    []string{"openvswitch", string(cmp.Or(spec.Network.TunnelType, v1alpha1.TunnelGeneve))},
	}
	if spec.Nodes.Datapath == v1alpha1.DatapathUserspace {
		s.Modules = []string{"tun"}
	}
	s.Modules = append(s.Modules, "nf_conntrack", "nf_tables", "veth")
	pods, _ := parsed(defaultNetwork(spec.Network).PodCIDRs)
	s.IPv6 = slices.ContainsFunc(pods, func(p netip.Prefix) bool { return ipfamily.Of(p.Addr()) == ipfamily.IPv6 })
	components, declared := c.onNode(node.Name)
	s.Installed = slices.Contains(components, "kube-ovn-cni")
	for _, of := range nodePorts {
		if of.central && !spec.Central.Selector().Matches(labels.Set(node.Labels)) || slices.ContainsFunc(of.components, func(c string) bool { return slices.Contains(components, c) }) {
			continue
		}
		for _, number := range of.ports {
			if !slices.Contains(declared, int32(number)) {
				s.Ports = append(s.Ports, NodePort{"tcp", number})
			}
		}
	}
	if !slices.Contains(components, "ovs-ovn") {
		s.Ports = append(s.Ports, NodePort{"udp", TunnelPort(s.TunnelType)})
	}
	return s
}

// onNode returns the components of Kiln with a pod on a node, and the ports that pods there declare.
func (c *Cluster) onNode(node string) (components []string, declared []int32) {
	for i := range c.Pods {
		pod := &c.Pods[i]
		if pod.Spec.NodeName != node {
			continue
		}
		if ofKiln(pod.Labels) {
			components = append(components, pod.Labels[v1alpha1.ComponentLabel])
		}
		for _, container := range pod.Spec.Containers {
			for _, port := range container.Ports {
				declared = append(declared, port.HostPort)
				if pod.Spec.HostNetwork {
					declared = append(declared, port.ContainerPort)
				}
			}
		}
	}
	return components, declared
}

// Directories of the node in the file system of the check.
const (
	ModulesDirectory = "host/modules" // /lib/modules
	CNIDirectory     = "host/cni"     // agent.cniConfDirectory
)

// node is the file system of a process in the network of a node, with the directories above.
type node struct{ fs.FS }

// largestFile is the number of bytes that are read of a file.
const largestFile = 8 << 20

// read returns the content of a file without surrounding space; "" if it cannot be read.
func (n node) read(name string) string {
	f, err := n.Open(name)
	if err != nil {
		return ""
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, largestFile))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(content))
}

func (n node) exists(name string) bool {
	_, err := fs.Stat(n, name)
	return err == nil
}

// CheckNode checks what files of a node show. host is the root of a process in the network of the node.
func CheckNode(host fs.FS, tunnel TunnelEnd, s NodeSettings) (all []Finding) {
	n := node{host}
	for _, check := range []func(NodeSettings) []Finding{n.modules, n.parameters, n.freePorts, n.cniFiles, n.legacyRules} {
		all = append(all, check(s)...)
	}
	return append(all, mtuOf(tunnel, s)...)
}

// outerHeaders are the bytes that a tunnel over IPv4 adds to a packet of a pod: Ethernet, geneve with OVN's option or vxlan, UDP and IP.
var outerHeaders = map[v1alpha1.TunnelType]int{v1alpha1.TunnelGeneve: 14 + 16 + 8 + 20, v1alpha1.TunnelVXLAN: 14 + 8 + 8 + 20}

// ipv6Overhead is the number of bytes that an IPv6 header has more than an IPv4 header.
const ipv6Overhead = 20

// LargestTunnelPacket is the size of the IP packet that carries the largest packet of a pod on the node; 0 if it is not known.
func (s NodeSettings) LargestTunnelPacket(end TunnelEnd) int {
	if end.MTU == 0 {
		return 0
	}
	size := cmp.Or(s.PodMTU, end.MTU-s.TunnelType.Overhead()) + outerHeaders[s.TunnelType]
	if end.Address.Is6() && s.PodMTU != 0 {
		size += ipv6Overhead // without network.mtu, the MTU of pods is smaller by as much
	}
	return size
}

// mtuOf compares network.mtu with the MTU of the interface for tunnels.
func mtuOf(end TunnelEnd, s NodeSettings) []Finding {
	size := s.LargestTunnelPacket(end)
	switch {
	case end.Device == "":
		return []Finding{{Failed, subjectMTU, fmt.Sprintf("no interface has an address for tunnels: nodes.tunnelInterface is %q, and the InternalIPs are %v", s.TunnelInterface, s.Addresses)}}
	case size > end.MTU:
		return []Finding{{Failed, subjectMTU, fmt.Sprintf("interface %s has an MTU of %d, and packets of pods with network.mtu %d need %d in the tunnel: lower network.mtu to %d, or raise the MTU of the interface",
			end.Device, end.MTU, s.PodMTU, size, s.PodMTU-(size-end.MTU))}}
	}
	return nil
}

// MergeNodes returns the findings of nodes. Equal ones become one, which names the nodes.
func MergeNodes(byNode map[string][]Finding) (merged []Finding) {
	nodes := map[Finding][]string{}
	for name, found := range byNode {
		for _, f := range found {
			nodes[f] = append(nodes[f], name)
		}
	}
	for f, on := range nodes {
		slices.Sort(on)
		f.Message += " (nodes " + k8s.Some(slices.Compact(on), someNames) + ")"
		merged = append(merged, f)
	}
	slices.SortFunc(merged, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Subject, b.Subject), cmp.Compare(a.Message, b.Message))
	})
	return merged
}

// AddNodes adds findings about nodes. If all nodes were checked, lines that say how to check them are removed.
func (r *Report) AddNodes(found []Finding, all bool) {
	if all {
		r.Findings = slices.DeleteFunc(r.Findings, func(f Finding) bool {
			return f.Level == Manual && (f.Subject == subjectPorts || f.Subject == subjectModules)
		})
	}
	r.Findings = newReport(append(r.Findings, found...)).Findings
}
