// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package envcheck

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
)

// defaultNetwork returns the networks of a spec, with the API's defaults for lists that are empty.
func defaultNetwork(n v1alpha1.Network) v1alpha1.Network {
	if len(n.PodCIDRs) == 0 {
		n.PodCIDRs = []string{"10.16.0.0/16"}
	}
	if len(n.ServiceCIDRs) == 0 {
		n.ServiceCIDRs = []string{"10.96.0.0/12"}
	}
	if len(n.JoinCIDRs) > 0 {
		return n
	}
	pods, _ := parsed(n.PodCIDRs)
	for _, cidr := range pods {
		n.JoinCIDRs = append(n.JoinCIDRs, map[ipfamily.Family]string{ipfamily.IPv4: "100.64.0.0/16", ipfamily.IPv6: "fd00:100:64::/112"}[ipfamily.Of(cidr.Addr())])
	}
	return n
}

func parsed(texts []string) (cidrs []netip.Prefix, err error) {
	for _, text := range texts {
		cidr, err := ipfamily.ParseCIDR(text)
		if err != nil {
			return nil, err
		}
		cidrs = append(cidrs, cidr)
	}
	return cidrs, nil
}

// networks checks that the networks of the spec overlap neither one another nor addresses of hosts, and contain the addresses of Services.
func networks(c *Cluster, spec *v1alpha1.OVNClusterSpec) []Finding {
	const subject = "Networks"
	n := defaultNetwork(spec.Network)
	type network struct {
		field string
		cidr  netip.Prefix
	}
	var all []network
	var services []netip.Prefix
	var found []Finding
	fail := func(format string, args ...any) {
		found = append(found, Finding{Failed, subject, fmt.Sprintf(format, args...)})
	}
	for _, list := range []struct {
		field string
		texts []string
	}{{"podCIDRs", n.PodCIDRs}, {"joinCIDRs", n.JoinCIDRs}, {"serviceCIDRs", n.ServiceCIDRs}} {
		cidrs, err := parsed(list.texts)
		if err != nil {
			fail("network.%s: %v", list.field, err)
			continue
		}
		for _, cidr := range cidrs {
			for _, other := range all {
				if other.cidr.Overlaps(cidr) {
					fail("network.%s %s overlaps network.%s %s: change one of them", list.field, cidr, other.field, other.cidr)
				}
			}
			all = append(all, network{list.field, cidr})
		}
		if list.field == "serviceCIDRs" {
			services = cidrs
		}
	}
	for _, host := range c.hosts() {
		for _, in := range all {
			if in.cidr.Contains(host.address) {
				fail("network.%s %s contains %s, the address of %s: choose another CIDR", in.field, in.cidr, host.address, host.owner)
			}
		}
	}
	inServices := func(a netip.Addr) bool {
		return slices.ContainsFunc(services, func(s netip.Prefix) bool { return s.Contains(a) })
	}
	for _, a := range c.ClusterIPs {
		if !inServices(a) {
			fail("the Service kubernetes has the address %s, which is not in network.serviceCIDRs %s: set them to the API server's --service-cluster-ip-range",
				a, ipfamily.Join(services))
		}
	}
	for _, text := range c.ServiceCIDRs {
		if cidr, err := netip.ParsePrefix(text); err == nil && !slices.ContainsFunc(services, cidr.Overlaps) {
			found = append(found, Finding{Warning, subject, fmt.Sprintf("the ServiceCIDR %s is not in network.serviceCIDRs: add it to serve Services of its family", cidr)})
		}
	}
	if len(found) == 0 {
		return []Finding{{OK, subject, fmt.Sprintf("pods %s, join %s and Services %s overlap neither one another nor addresses of hosts",
			k8s.Some(n.PodCIDRs, someNames), k8s.Some(n.JoinCIDRs, someNames), k8s.Some(n.ServiceCIDRs, someNames))}}
	}
	return found
}

// host is an address that nodes must reach through their own network.
type host struct {
	address netip.Addr
	owner   string
}

func (c *Cluster) hosts() (all []host) {
	for i := range c.Nodes {
		for _, a := range k8s.InternalIPs(&c.Nodes[i]) {
			all = append(all, host{a, "node " + c.Nodes[i].Name})
		}
	}
	for _, a := range c.APIServer {
		if !slices.ContainsFunc(all, func(h host) bool { return h.address == a }) {
			all = append(all, host{a, "the API server"})
		}
	}
	return all
}

// hostPorts are the ports that components of Kiln use on nodes. docs/operations/install.md lists them with their purpose.
var hostPorts = []int32{
	6641, 6642, 6643, 6644, 6649, 6651, 6652, 6654, 6655, 6661, 6662, 6664, 10660, 10661, 10665, 10670, 10671, 10672, 10673,
	10860, 10861, 10865, 10870, 10872,
}

// ports looks for other pods that declare a port of Kiln on their node.
func ports(c *Cluster, _ *v1alpha1.OVNClusterSpec) []Finding {
	var found []Finding
	for _, pod := range c.Pods {
		if ofKiln(pod.Labels) {
			continue
		}
		for _, container := range pod.Spec.Containers {
			for _, port := range container.Ports {
				number := port.HostPort
				if pod.Spec.HostNetwork {
					number = port.ContainerPort
				}
				if slices.Contains(hostPorts, number) {
					found = append(found, Finding{Failed, subjectPorts, fmt.Sprintf("pod %s/%s has port %d of node %s, which Kiln needs: move the pod to another port",
						pod.Namespace, pod.Name, number, pod.Spec.NodeName)})
				}
			}
		}
	}
	return append(found, Finding{Manual, subjectPorts, "the API shows declared ports of pods only. On each node compare `ss -lntu` with the ports in docs/operations/install.md"})
}

// ofKiln reports whether labels are those of a component of Kiln.
func ofKiln(labels map[string]string) bool {
	return labels[v1alpha1.PartOfLabel] == v1alpha1.PartOf || labels[v1alpha1.ComponentLabel] == "kiln-operator"
}
