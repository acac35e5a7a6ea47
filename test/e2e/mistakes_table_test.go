// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/test/cluster"
)

// Where a user sees the answer to a mistake, apart from a condition of the object.
const (
	inError   = "error"
	inWarning = "warning"
	inEvent   = "event"
)

// mistake is a mistake of a user, and the essential parts of the answer: the cause and what to change.
type mistake struct {
	// number is that of a review of what users met. Variants of a mistake share it.
	number int
	what   string
	// object is created; with change, a merge patch, or with deletes it exists already.
	object  string
	change  string
	deletes bool
	// dryRun sends the request without an effect: it concerns the whole cluster.
	dryRun bool
	// tenant has the role edit in mistakesNamespace only, and sees no Subnets or Vips.
	tenant bool
	// where is inError, inWarning, inEvent or the type of a condition.
	where string
	says  []string
}

// mistakesOfUsers returns all mistakes. 12, two subnets for a namespace, is none.
func mistakesOfUsers() []mistake {
	var all []mistake
	for _, list := range [][]mistake{mistakesInSubnets(), mistakesInOtherObjects(), mistakesInRules(), mistakesInPods(), mistakesInServices(), mistakesInClusters()} {
		all = append(all, list...)
	}
	return all
}

// network returns a cluster-wide object of kubeovn.io/v1.
func network(kind, name, spec string) string {
	return fmt.Sprintf("{apiVersion: kubeovn.io/v1, kind: %s, metadata: {name: mistake-%s}, spec: %s}", kind, name, spec)
}

// mistakenPod returns a pod with an annotation. It is not scheduled if gated.
func mistakenPod(name, key, value string, gated bool) string {
	gates := ""
	if gated {
		gates = "schedulingGates: [{name: example.com/wait}], "
	}
	return fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: mistake-%s, namespace: %s, annotations: {%s: %q}}, "+
		"spec: {%sterminationGracePeriodSeconds: 1, containers: [{name: c, image: %q, args: [pause]}]}}", name, mistakesNamespace, key, value, gates, cluster.AgnhostImage)
}

func mistakenService(name, annotations, spec string) string {
	return fmt.Sprintf("{apiVersion: v1, kind: Service, metadata: {name: mistake-%s, namespace: %s, annotations: %s}, spec: %s}", name, mistakesNamespace, annotations, spec)
}

func mistakesInSubnets() []mistake {
	const ready = "Ready"
	node := netip.PrefixFrom(netip.MustParseAddr(suite.NodeAddresses[0]), 28).Masked()
	return []mistake{
		{number: 1, what: "names of fields misspelt", object: network("Subnet", "1", "{cidr: 10.150.1.0/24, natOutGoing: true}"), where: inError,
			says: []string{`unknown field "spec.cidr"`, `unknown field "spec.natOutGoing"`}},
		{number: 2, what: "range of excludeIps with a hyphen", object: network("Subnet", "2", "{cidrBlock: 10.150.2.0/24, excludeIps: [10.150.2.1-10.150.2.10]}"), where: inError,
			says: []string{"must be an address or a range like 10.16.0.10..10.16.0.20"}},
		{number: 3, what: "excludeIps outside of the CIDR", object: network("Subnet", "3", "{cidrBlock: 10.150.3.0/24, excludeIps: [10.151.0.1]}"), where: inWarning,
			says: []string{"excludeIps: 10.151.0.1 is outside of cidrBlock 10.150.3.0/24", "correct or remove it"}},
		{number: 4, what: "an address with host bits as cidrBlock", object: network("Subnet", "4", "{cidrBlock: 10.150.4.5/24}"), where: inWarning,
			says: []string{"10.150.4.5/24 has bits after the prefix length, and means 10.150.4.0/24"}},
		{number: 5, what: "two IPv4 CIDRs", object: network("Subnet", "5", "{cidrBlock: '10.150.5.0/24,10.151.5.0/24'}"), where: inError,
			says: []string{"must be one CIDR, or one of each family with a comma between them"}},
		{number: 6, what: "gateway of another family", object: network("Subnet", "6", "{cidrBlock: 10.150.6.0/24, gateway: 'fd00::1'}"), where: ready,
			says: []string{"gateway fd00::1 is of a family that cidrBlock 10.150.6.0/24 does not have", "leave it out"}},
		{number: 7, what: "overlap with a subnet", object: network("Subnet", "7a", "{cidrBlock: 10.16.128.0/24}"), where: ready,
			says: []string{"cidrBlock 10.16.128.0/24 overlaps with 10.16.0.0/16", "of subnet ovn-default", "choose another one"}},
		{number: 7, what: "overlap with Services", object: network("Subnet", "7b", "{cidrBlock: 10.96.128.0/24}"), where: ready,
			says: []string{"cidrBlock 10.96.128.0/24 overlaps with the addresses of Services", "choose another one"}},
		{number: 7, what: "overlap with nodes and the API server", object: network("Subnet", "7c", "{cidrBlock: "+node.String()+"}"), where: ready,
			says: []string{"cidrBlock " + node.String() + " holds", "the address of", "choose another one"}},
		{number: 8, what: "a Subnet with the name of its Vpc", object: network("Subnet", "8", "{vpc: mistake-8, cidrBlock: 10.150.8.0/24}"), where: ready,
			says: []string{"subnet mistake-8 has the name of its VPC, and a switch and a router cannot share one", "rename it"}},
		{number: 9, what: "a Vpc that does not exist", object: network("Subnet", "9", "{vpc: nosuchvpc, cidrBlock: 10.150.9.0/24}"), where: ready,
			says: []string{"VPC nosuchvpc does not exist: create it, or delete the subnet"}},
		{number: 10, what: "a namespace that does not exist", object: network("Subnet", "10", "{cidrBlock: 10.150.10.0/24, namespaces: [no-such-namespace]}"), where: ready,
			says: []string{"namespaces no-such-namespace do not exist: create them, or correct the names"}},
		{number: 11, what: "a gateway node that does not exist",
			object: network("Subnet", "11", "{cidrBlock: 10.150.11.0/24, gatewayType: centralized, gatewayNode: worker-9}"), where: ready,
			says: []string{"gatewayNode names no existing node (worker-9): nothing leaves the subnet", "write names of nodes"}},
		{number: 13, what: "a private Subnet for a namespace with running pods",
			object: network("Subnet", "13", "{cidrBlock: 10.150.13.0/24, private: true, namespaces: ["+movedNamespace+"]}"), where: inEvent,
			says: []string{"1 pods of namespaces " + movedNamespace + " have addresses of subnet ovn-default, because they existed before: create them again"}},
		{number: 27, what: "a provider of another network", object: network("Subnet", "27", "{cidrBlock: 10.150.27.0/24, provider: net1.user-a.ovn}"), where: inWarning,
			says: []string{"provider net1.user-a.ovn: this version makes networks of the provider ovn only", "leave it out, or write ovn"}},
		{number: 34, what: "a DHCP option misspelt", object: network("Subnet", "34", "{cidrBlock: 10.150.34.0/24, enableDHCP: true, dhcpV4Options: lease=3600}"), where: ready,
			says: []string{"dhcpV4Options: there is no option lease: did you mean lease_time?"}},
		{number: 36, what: "a Subnet in use deleted", object: network("Subnet", "36", "{cidrBlock: 10.150.36.0/24}"), deletes: true, where: ready,
			says: []string{"deleted once its addresses are free: 1 in use", "used." + mistakesNamespace}},
	}
}

func mistakesInOtherObjects() []mistake {
	const ready = "Ready"
	list := []mistake{
		{number: 14, what: "an IPPool of an unknown subnet", object: network("IPPool", "14a", "{subnet: nosuch, ips: [10.150.14.1]}"), where: ready,
			says: []string{"subnet nosuch does not exist: create it, or a pool of another one"}},
		{number: 14, what: "a range the wrong way round", object: network("IPPool", "14b", "{subnet: mistake-3, ips: [10.150.3.20..10.150.3.10]}"), where: ready,
			says: []string{`range "10.150.3.20..10.150.3.10" ends before it begins: write the lower address first`}},
		{number: 15, what: "a Vip with an address in use", object: network("Vip", "15a", "{subnet: ovn-default, v4ip: "+heldAddress+"}"), where: ready,
			says: []string{heldAddress + " is taken by holder." + mistakesNamespace + ": create a Vip with another one, or free it"}},
		{number: 15, what: "a Vip of an unknown subnet", object: network("Vip", "15b", "{subnet: nosuch}"), where: ready,
			says: []string{"subnet nosuch does not exist: create it, or a Vip of another one"}},
		{number: 16, what: "a type of Vips that does not exist", object: network("Vip", "16", "{subnet: ovn-default, type: switch-lb-vip}"), where: inWarning,
			says: []string{"type switch-lb-vip: Kiln knows no such type, and ignores it: leave it out, or write switch_lb_vip"}},
		{number: 33, what: "a next hop nowhere", object: network("Vpc", "33a", "{staticRoutes: [{cidr: 0.0.0.0/0, nextHopIP: 192.0.2.1}]}"), where: ready,
			says: []string{"next hop 192.0.2.1 is in no subnet of the VPC and on no link to a peer: choose an address that is, or create the subnet"}},
		{number: 33, what: "a match with =", object: network("Vpc", "33b", `{policyRoutes: [{action: drop, priority: 10, match: "ip4.src = 10.0.0.1"}]}`), where: ready,
			says: []string{"at character 9, `=`: write == to compare"}},
		{number: 33, what: "a defaultSubnet of another VPC", object: network("Vpc", "33c", "{defaultSubnet: ovn-default}"), where: ready,
			says: []string{"defaultSubnet ovn-default is of VPC ovn-cluster: name a subnet of this VPC"}},
		{number: 38, what: "an IP object with an address in use", object: network("IP", "38", "{subnet: ovn-default, v4IpAddress: "+heldAddress+"}"), where: ready,
			says: []string{heldAddress + " is taken by holder." + mistakesNamespace + ": ask for another one"}},
	}
	for i, kind := range []string{"VpcNatGateway", "QoSPolicy", "IptablesEIP", "VpcDns"} {
		for j, where := range []string{inWarning, ready} {
			list = append(list, mistake{number: 35, what: "the kind " + kind, object: network(kind, fmt.Sprintf("35-%d-%d", i, j), "{}"), where: where,
				says: []string{"this version of Kiln does not implement the kind " + kind + ": the object has no effect"}})
		}
	}
	return list
}

func mistakesInRules() []mistake {
	rule := func(spec string) string {
		return "{ingressRules: [{ipVersion: ipv4, priority: 1, policy: allow, " + spec + "}]}"
	}
	const anywhere = "remoteType: address, remoteAddress: 0.0.0.0/0"
	return []mistake{
		{number: 17, what: "a selector as of kubectl", object: network("SwitchLBRule", "17", `{vip: 10.150.17.1, selector: ["app=web"], ports: [{port: 80}]}`), where: inError,
			says: []string{"must be a label as key:value: write app:web"}},
		{number: 18, what: "a named targetPort", object: network("SwitchLBRule", "18a", "{vip: 10.150.18.1, ports: [{port: 80, targetPort: http}]}"), where: inError,
			says: []string{"spec.ports[0].targetPort", "must be of type integer"}},
		{number: 18, what: "the protocol HTTP", object: network("SwitchLBRule", "18b", "{vip: 10.150.18.1, ports: [{port: 80, protocol: HTTP}]}"), where: inError,
			says: []string{`Unsupported value: "HTTP": supported values: "", "TCP", "UDP", "SCTP"`}},
		{number: 19, what: "a rule without namespace, which selects no pod",
			object: network("SwitchLBRule", "19", `{vip: 10.150.19.1, selector: ["app:holder"], ports: [{port: 80, targetPort: 8080}]}`), where: "Ready",
			says: []string{"connections are refused: Service", "has no ready endpoint: check the rule's namespace and selector, and its pods"}},
		{number: 20, what: "the protocol TCP in a SecurityGroup", object: network("SecurityGroup", "20a", rule(anywhere+", protocol: TCP")), where: inError,
			says: []string{`Unsupported value: "TCP": supported values: "", "all", "icmp", "tcp", "udp"`}},
		{number: 20, what: "priority 0", object: network("SecurityGroup", "20b", strings.Replace(rule(anywhere), "priority: 1", "priority: 0", 1)), where: inError,
			says: []string{"priority", "should be greater than or equal to 1"}},
		{number: 20, what: "an address of another family", object: network("SecurityGroup", "20c", rule("remoteType: address, remoteAddress: 'fd00::/64'")), where: inError,
			says: []string{`remoteAddress "fd00::/64" must be an address or a CIDR of the family in ipVersion, ipv4`}},
		{number: 20, what: "ports in the wrong order", object: network("SecurityGroup", "20d", rule(anywhere+", protocol: tcp, portRangeMin: 90, portRangeMax: 80")), where: inError,
			says: []string{"portRangeMin is above portRangeMax: exchange them"}},
		{number: 20, what: "no group", object: network("SecurityGroup", "20e", rule("remoteType: securityGroup")), where: inError,
			says: []string{"remoteSecurityGroup must name a group"}},
	}
}

func mistakesInPods() []mistake {
	const key = "ovn.kubernetes.io/"
	list := []mistake{
		{number: 21, what: "a SecurityGroup that does not exist", object: mistakenPod("21", key+"security_groups", "nosuch", false), where: inEvent,
			says: []string{"names nosuch, which does not exist: nothing passes by it. Create the SecurityGroup, or name another one"}},
		{number: 22, what: "an unknown pool", object: mistakenPod("22a", key+"ip_pool", "nosuch", false), where: inEvent,
			says: []string{"IPPool nosuch, which annotation ovn.kubernetes.io/ip_pool names, does not exist: create it, or name another one"}},
		{number: 22, what: "an unknown Vip", object: mistakenPod("22b", key+"vip", "nosuch", false), where: inEvent,
			says: []string{"Vip nosuch, which annotation ovn.kubernetes.io/vip names, does not exist: create it, or name another one"}},
		{number: 22, what: "an address in use", object: mistakenPod("22c", key+"ip_address", heldAddress, false), where: inEvent,
			says: []string{heldAddress + " is taken by holder." + mistakesNamespace + ": ask for another one"}},
		{number: 22, what: "a family that the subnet does not have",
			object: strings.Replace(mistakenPod("22d", key+"logical_switch", "mistake-3", false), "annotations: {", "annotations: {"+key+"ip_family: ipv6, ", 1), where: inEvent,
			says: []string{"subnet mistake-3 has no CIDR of the family in annotation ovn.kubernetes.io/ip_family: correct the annotation, or name another subnet"}},
		{number: 23, what: "an address with a prefix length", object: mistakenPod("23a", key+"ip_address", "10.201.0.62/24", true), where: inError,
			says: []string{"write one address, or one of each family as in 10.16.0.9,fd00::9"}},
		{number: 23, what: "a bad MAC address", object: mistakenPod("23b", key+"mac_address", "0a:00", true), where: inError,
			says: []string{`ovn.kubernetes.io/mac_address: "0a:00" cannot be read`}},
		{number: 24, what: "an annotation misspelt", object: mistakenPod("24a", key+"ip_addr", "10.16.0.9", true), where: inWarning, says: []string{"did you mean ip_address?"}},
		{number: 24, what: "an annotation in other letters", object: mistakenPod("24b", key+"logicalSwitch", "a", true), where: inWarning, says: []string{"did you mean", "logical_switch?"}},
		{number: 25, what: "the API group as domain", object: mistakenPod("25a", "kubeovn.io/ip_address", "10.16.0.9", true), where: inWarning,
			says: []string{"kubeovn.io/ip_address: without effect: write ovn.kubernetes.io/ip_address"}},
		{number: 25, what: "networks of Multus", object: mistakenPod("25b", "k8s.v1.cni.cncf.io/networks", "net1", true), where: inWarning,
			says: []string{"Kiln makes one interface; only Multus, if it is installed, makes others: install it, or remove the annotation"}},
		{number: 26, what: "an annotation of another interface", object: mistakenPod("26a", "net1.user-a.kubernetes.io/ip_address", "10.16.0.9", true), where: inWarning,
			says: []string{"net1.user-a.kubernetes.io/ip_address: without effect in this version"}},
		{number: 26, what: "a missing feature, at apply", object: mistakenPod("26b", key+"activation_strategy", "parallel", true), where: inWarning,
			says: []string{"ovn.kubernetes.io/activation_strategy: without effect in this version"}},
		{number: 26, what: "a missing feature, of a pod", object: mistakenPod("26c", key+"activation_strategy", "parallel", false), where: inEvent,
			says: []string{"this version does nothing about ovn.kubernetes.io/activation_strategy"}},
		{number: 28, what: "two replicas with one address", where: inEvent, object: fmt.Sprintf("{apiVersion: apps/v1, kind: Deployment, metadata: {name: mistake-28, namespace: %s}, "+
			"spec: {replicas: 2, selector: {matchLabels: {app: mistake-28}}, template: {metadata: {labels: {app: mistake-28}, annotations: {%sip_address: 10.16.150.28}}, "+
			"spec: {terminationGracePeriodSeconds: 1, containers: [{name: c, image: %q, args: [pause]}]}}}}", mistakesNamespace, key, cluster.AgnhostImage),
			says: []string{"address 10.16.150.28 is taken by mistake-28-", ": ask for another one"}},
	}
	for i := range list {
		list[i].tenant = true
	}
	return list
}

func mistakesInServices() []mistake {
	list := []mistake{
		{number: 29, what: "a load balancer without a class", object: mistakenService("29a", "{}", "{type: LoadBalancer, selector: {app: holder}, ports: [{port: 80}]}"), where: inEvent,
			says: []string{"the Service gets no address: it has no loadBalancerClass", "create the Service again with a class of spec.services.loadBalancerPools"}},
		{number: 29, what: "a load balancer of a class without a pool",
			object: mistakenService("29b", "{}", "{type: LoadBalancer, loadBalancerClass: example.com/none, selector: {app: holder}, ports: [{port: 80}]}"), where: inEvent,
			says: []string{"no pool of the OVNCluster has the class example.com/none", "create the Service again with a class of spec.services.loadBalancerPools"}},
		{number: 30, what: "a named targetPort misspelt", object: mistakenService("30", "{}", "{selector: {app: holder}, ports: [{port: 80, targetPort: htpp}]}"), where: inEvent,
			says: []string{"no pod of the Service has a port of the name htpp: connections to port 80 are refused", "write targetPort as in the pods, or a number"}},
		{number: 31, what: "a NetworkPolicy with a port name that no pod has", where: inEvent, object: fmt.Sprintf("{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, "+
			"metadata: {name: mistake-31, namespace: %s}, spec: {podSelector: {matchLabels: {app: holder}}, ingress: [{ports: [{port: htpp}]}]}}", mistakesNamespace),
			says: []string{"no pod that the policy selects has a port of the name htpp", "write the name as in the pods, or a number"}},
		{number: 32, what: "a Service of an unknown VPC", object: mistakenService("32", "{ovn.kubernetes.io/logical_router: nosuch}", "{selector: {app: holder}, ports: [{port: 80}]}"), where: inEvent,
			says: []string{"names Vpc nosuch, which does not exist: create it, or name another one"}},
	}
	for i := range list {
		list[i].tenant = true
	}
	return list
}

// mistakesInClusters are refused at once, so that a dry run has the same answer.
func mistakesInClusters() []mistake {
	other, spec := v1alpha1.DatapathUserspace, asInstalled()
	if spec.Nodes.Datapath == other {
		other = v1alpha1.DatapathKernel
	}
	list := []mistake{
		{what: "a datapath that does not exist", change: "{spec: {nodes: {datapath: Hardware}}}", says: []string{`Unsupported value: "Hardware": supported values: "Kernel", "Userspace"`}},
		{what: "an even number of members", change: "{spec: {central: {replicas: 2}}}", says: []string{"spec.central.replicas: Unsupported value: 2: supported values"}},
		{what: "a pool without addresses that can be assigned",
			change: "{spec: {services: {loadBalancerPools: [{class: example.com/a, addresses: [public]}]}}}", says: []string{"must be unicast addresses, ranges like", "and are public"}},
		{what: "a class without a domain",
			change: "{spec: {services: {loadBalancerPools: [{class: public, addresses: [192.0.2.1]}]}}}", says: []string{"must be a domain and a name, such as example.com/public"}},
		{what: "another datapath", change: fmt.Sprintf("{spec: {nodes: {datapath: %s, tunnelInterface: eth0}}}", other),
			says: []string{"cannot change from", "on an installed cluster", "remove the OVNCluster and create it again"}},
		{what: "the OVNCluster deleted", deletes: true, says: []string{"first run: kubectl annotate ovncluster", "kubeovn.io/allow-removal=true"}},
	}
	for i := range list {
		m := &list[i]
		m.number, m.where, m.dryRun = 37, inError, true
		m.object = fmt.Sprintf("{apiVersion: kubeovn.io/v1alpha1, kind: OVNCluster, metadata: {name: %s}}", v1alpha1.OVNClusterName)
	}
	return list
}
