// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package envcheck

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

// setting is an argument or an environment variable of a component of Kube-OVN.
type setting struct {
	name string
	// none are values that request nothing that Kiln does not do; the empty value is always one.
	none []string
	// level and text say what becomes of another value. A setting without a level has only to do with the way how Kube-OVN works.
	level Level
	text  string
	// field of the proposed OVNCluster that carry sets. carry returns why it cannot, or "".
	field string
	carry func(p *proposal, value string) string
}

func own(names ...string) (all []setting) {
	for _, name := range names {
		all = append(all, setting{name: name})
	}
	return all
}

// inObjects are settings that Kube-OVN has written into the default subnets, which Kiln adopts.
func inObjects(names ...string) (all []setting) {
	for _, name := range names {
		all = append(all, setting{name: name, level: Differs, text: "stays in the Subnet that Kube-OVN has created with it"})
	}
	return all
}

func lost(name, none, text string) setting {
	return setting{name: name, none: []string{none}, level: Lost, text: text}
}

func differs(name, none, text string) setting {
	return setting{name: name, none: []string{none}, level: Differs, text: text}
}

func carried(name, field string, carry func(p *proposal, value string) string) setting {
	return setting{name: name, level: Carried, field: field, carry: carry}
}

// switchedOff is a setting with the default true. false becomes a field.
func switchedOff(name, field string, carry func(p *proposal)) setting {
	s := carried(name, field, func(p *proposal, _ string) string { carry(p); return "" })
	s.none = []string{"true"}
	return s
}

// klog are flags of the log library.
var klog = own("v", "log_dir", "log_file", "log_file_max_size", "logtostderr", "alsologtostderr", "stderrthreshold", "log-perm", "kubeconfig", "skip_headers",
	"add_dir_header", "one_output", "vmodule", "log_backtrace_at", "skip_log_headers")

const fixedName = "the name is fixed in Kiln: objects with the other name need a change"

// mirrorAll copies the packets of all pods to mirror0; without it, of pods with an annotation.
func mirrorAll() setting {
	s := carried("enable-mirror", "agent.mirror", func(p *proposal, value string) string {
		if value == "true" {
			p.spec.Agent.Mirror = v1alpha1.MirrorAll
		}
		return ""
	})
	s.none = []string{"false"}
	return s
}

// bfdInterval is an interval of BFD in milliseconds.
func bfdInterval(name, field string, of func(*v1alpha1.BFD) **metav1.Duration) setting {
	return carried(name, "network.externalGateways.bfd."+field, func(p *proposal, value string) string {
		return bfdDuration(of(&p.spec.Network.ExternalGateways.BFD), value)
	})
}

// cniConfName is the name of the conflist, of which the OVNCluster sets the two digits.
func cniConfName() setting {
	s := carried("cni-conf-name", "agent.cniConfPriority", (*proposal).cniConfName)
	s.none = []string{"01-kube-ovn.conflist"}
	return s
}

func controllerSettings() []setting {
	all := append(own("ovn-nb-addr", "ovn-sb-addr", "ovn-timeout", "ovsdb-con-timeout", "ovsdb-con-maxretry", "ovsdb-inactivity-timeout",
		"cust-crd-retry-min-delay", "cust-crd-retry-max-delay", "worker-num", "gc-interval", "inspect-interval", "nodepg-probe-time",
		"ls-dnat-mod-dl-dst", "ls-ct-skip-dst-lport-ips", "cluster-tcp-loadbalancer", "cluster-udp-loadbalancer", "cluster-sctp-loadbalancer",
		"cluster-tcp-session-loadbalancer", "cluster-udp-session-loadbalancer", "cluster-sctp-session-loadbalancer", "enable-metrics", "enable-pprof",
		"pprof-port", "image", "enable-live-migration-optimize", "default-provider-name", "default-interface-name", "default-vlan-name",
		"default-vlan-id", "external-gateway-config-ns", "external-gateway-switch", "external-gateway-net",
		"external-gateway-vlanid", "frr-image", "enable-eip-snat", "leader-elect-lease-duration",
		"leader-elect-renew-deadline", "leader-elect-retry-period", "tls-min-version", "tls-max-version", "tls-cipher-suites"), klog...)
	all = append(all, inObjects("default-gateway", "default-exclude-ips", "default-gateway-check", "default-logical-gateway", "default-u2o-interconnection",
		"node-switch-gateway")...)
	return append(all,
		carried("default-cidr", "network.podCIDRs", func(p *proposal, v string) string { return p.cidrs(&p.spec.Network.PodCIDRs, v) }),
		carried("node-switch-cidr", "network.joinCIDRs", func(p *proposal, v string) string { return p.cidrs(&p.spec.Network.JoinCIDRs, v) }),
		carried("service-cluster-ip-range", "network.serviceCIDRs", func(p *proposal, v string) string { return p.cidrs(&p.spec.Network.ServiceCIDRs, v) }),
		carried("network-type", "network.tunnelType", (*proposal).tunnel),
		bfdInterval("bfd-min-tx", "minTransmit", func(b *v1alpha1.BFD) **metav1.Duration { return &b.MinTransmit }),
		bfdInterval("bfd-min-rx", "minReceive", func(b *v1alpha1.BFD) **metav1.Duration { return &b.MinReceive }),
		carried("detect-mult", "network.externalGateways.bfd.multiplier", (*proposal).bfdMultiplier),
		lost("default-ls", "ovn-default", fixedName),
		lost("cluster-router", "ovn-cluster", fixedName),
		lost("node-switch", "join", fixedName),
		lost("default-exchange-link-name", "false", "exchangeLinkName of ProviderNetworks has no effect"),
		lost("pod-nic-type", "veth-pair", "pods have a pair of virtual Ethernet devices"),
		switchedOff("enable-lb", "services.podAccess", func(p *proposal) { p.spec.Services.PodAccess = v1alpha1.PodAccessNode }),
		switchedOff("enable-np", "policies.networkPolicies", func(p *proposal) { p.spec.Policies.NetworkPolicies = v1alpha1.NetworkPoliciesIgnored }),
		lost("np-enforcement", "standard", "set the annotation ovn.kubernetes.io/network_policy_enforcement of each NetworkPolicy"),
		lost("enable-ecmp", "false", "set enableEcmp of each Subnet with a centralized gateway"),
		lost("keep-vm-ip", "true", "virtual machines keep their addresses"),
		lost("enable-lb-svc", "false", "Services of type LoadBalancer get no pods: use services.loadBalancerPools, or in custom VPCs loadBalancerClass kubeovn.io/ovn-eip"),
		lost("enable-external-vpc", "false", "routers of other systems are not imported"),
		lost("enable-dns-name-resolver", "false", "policies with DNS names have no effect"),
		lost("node-local-dns-ip", "", "pods reach a DNS cache on their node like other addresses of the node, and NetworkPolicies must allow it"),
		lost("skip-conntrack-dst-cidrs", "", "all connections are tracked"),
		lost("enable-ovn-ipsec", "false", "tunnels are not encrypted"),
		lost("cert-manager-ipsec-cert", "false", "tunnels are not encrypted"),
		lost("non-primary-cni-mode", "false", "Kiln is the first network of pods"),
		differs("secure-serving", "false", "monitoring.access: Authorized serves metrics over TLS"),
		differs("enable-ovn-lb-prefer-local", "false", "internalTrafficPolicy Local of each Service works"),
		differs("enable-anp", "false", "policies of clusters are always served when their definitions exist"),
	)
}

func agentSettings() []setting {
	all := append(own("bind-socket", "ovs-socket", "cluster-router", "node-switch", "enable-metrics", "ovs-vsctl-concurrency", "install-cni-config",
		"service-cluster-ip-range", "network-type", "default-provider-name", "default-interface-name", "external-gateway-config-ns",
		"external-gateway-switch", "dpdk-tunnel-iface", "kubelet-dir", "enable-arp-detect-ip-conflict", "enable-pprof", "pprof-port",
		"tcp-conn-check-port", "udp-conn-check-port", "enable-verbose-conn-check", "cni-conf-dir", "cni-conf-file", "cert-manager-issuer-name",
		"ovn-ipsec-cert-duration", "tls-min-version", "tls-max-version", "tls-cipher-suites", "node-name"), klog...)
	return append(all,
		carried("iface", "nodes.tunnelInterface", (*proposal).tunnelInterface),
		carried("mtu", "network.mtu", (*proposal).mtu),
		cniConfName(),
		lost("host-tunnel-src", "false", "tunnels have the address of the tunnel interface"),
		lost("encap-checksum", "true", "tunnels have checksums"),
		lost("set-vxlan-tx-off", "false", "offloads of the tunnel interface stay as they are"),
		mirrorAll(),
		lost("mirror-iface", "mirror0", "the interface with copies of packets is mirror0, and no network card"),
		lost("mac-learning-fallback", "false", "it needs a patched OVN"),
		lost("enable-ovn-ipsec", "false", "tunnels are not encrypted"),
		lost("cert-manager-ipsec-cert", "false", "tunnels are not encrypted"),
		lost("non-primary-cni-mode", "false", "Kiln is the first network of pods"),
		differs("secure-serving", "false", "monitoring.access: Authorized serves metrics over TLS"),
		differs("enable-tproxy", "false", "probes reach pods of custom VPCs by themselves"),
	)
}

// component is a workload of Kube-OVN. settings is nil for one whose arguments do not matter.
type component struct {
	name     string
	settings func() []setting
	// level and text are for the workload as a whole, if Kiln has none of its kind.
	level Level
	text  string
}

// components are all workloads of Kube-OVN, with the environment variables that configure a feature.
var components = []component{
	{name: "kube-ovn-controller", settings: controllerSettings},
	{name: "kube-ovn-cni", settings: agentSettings},
	{name: "ovn-central", settings: func() []setting {
		return []setting{
			differs("ENABLE_SSL", "true", "the databases always use TLS"),
			lost("OVN_NORTHD_N_THREADS", "1", "northd has one thread"),
		}
	}},
	{name: "ovs-ovn", settings: func() []setting {
		return []setting{
			carried("TUNNEL_TYPE", "network.tunnelType", (*proposal).tunnel),
			lost("HW_OFFLOAD", "false", "flows are not offloaded to network cards"),
		}
	}},
	{name: "ovs-ovn-dpdk", level: Lost, text: "nodes with DPDK are not supported"},
	{name: "kube-ovn-speaker", level: Differs, text: "spec.speaker starts it; its arguments are fields of each peer (docs/user/bgp.md)"},
	{name: "ovn-ic-server", level: Lost, text: "clusters are not connected"},
	{name: "ovn-ic-controller", level: Lost, text: "clusters are not connected"},
	{name: "kube-ovn-ic-controller", level: Lost, text: "clusters are not connected"},
	{name: "kube-ovn-pinger", level: Differs, text: "it runs with the same metrics (pinger_*); its targets are fields of spec.pinger, and pinger.mode: Disabled removes it"},
	{name: "kube-ovn-monitor", level: Differs, text: "the operator installs it; docs/operations/metrics.md names its metrics"},
	{name: "kube-ovn-webhook", level: Differs, text: "the definitions and admission policies check objects. Delete its ValidatingWebhookConfiguration as well"},
}

// features are ConfigMaps that turn a feature on by a key with the value true.
var features = []struct{ configMap, key, text string }{
	{"ovn-vpc-nat-gw-config", "enable-vpc-nat-gw", "VpcNatGateways have no effect"},
	{"vpc-dns-config", "enable-vpc-dns", "VpcDns has no effect"},
	{"ovn-ic-config", "enable-ic", "clusters are not connected"},
}
