// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// APIServer is an address of the API server that does not depend on the network of the cluster.
type APIServer struct {
	// host is an IP address or a name that nodes can resolve.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Host string `json:"host"`
	// +optional
	// +kubebuilder:default=6443
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`
}

// TunnelType is the encapsulation of traffic between nodes (ovn-controller(8), ovn-encap-type).
// +kubebuilder:validation:Enum=geneve;vxlan
type TunnelType string

// Values of TunnelType.
const (
	TunnelGeneve TunnelType = "geneve"
	TunnelVXLAN  TunnelType = "vxlan"
)

// Overhead returns the number of bytes by which the MTU of pods is smaller than the MTU of the interface for tunnels over IPv4: outer headers and, for geneve,
// space for options. It is 0 for an unknown type. An IPv6 header has 20 bytes more.
func (t TunnelType) Overhead() int {
	return map[TunnelType]int{TunnelGeneve: 100, TunnelVXLAN: 50}[t]
}

// Network holds the addresses of the cluster. Each list has one CIDR per family, at most two, in the order of preference.
// +kubebuilder:validation:XValidation:rule="!has(self.joinCIDRs) || self.joinCIDRs.size() == 0 || self.joinCIDRs.size() == self.podCIDRs.size() && self.joinCIDRs.all(j, self.podCIDRs.exists(p, cidr(j).ip().family() == cidr(p).ip().family()))",message="joinCIDRs must have the families of podCIDRs",messageExpression=`'joinCIDRs must have the families of podCIDRs: ' + self.joinCIDRs.join(',') + ' does not fit ' + self.podCIDRs.join(',')`
// +kubebuilder:validation:XValidation:rule="!has(self.podCIDRs) || !has(self.serviceCIDRs) || !self.podCIDRs.exists(p, self.serviceCIDRs.exists(s, cidr(p).containsCIDR(s) || cidr(s).containsCIDR(p)))",message="podCIDRs and serviceCIDRs must not overlap",messageExpression=`'podCIDRs and serviceCIDRs must not overlap: change ' + self.podCIDRs.join(',') + ', or set serviceCIDRs to those of the API server, which are ' + self.serviceCIDRs.join(',') + ' here'`
// +kubebuilder:validation:XValidation:rule="!has(self.joinCIDRs) || !self.joinCIDRs.exists(j, (self.podCIDRs + self.serviceCIDRs).exists(c, cidr(j).containsCIDR(c) || cidr(c).containsCIDR(j)))",message="joinCIDRs must overlap neither with podCIDRs nor with serviceCIDRs",messageExpression=`'joinCIDRs must overlap neither with podCIDRs nor with serviceCIDRs: change ' + self.joinCIDRs.join(',') + ', because the others are ' + self.podCIDRs.join(',') + ' and ' + self.serviceCIDRs.join(',')`
// +kubebuilder:validation:XValidation:rule="!has(self.podGateways) || self.podGateways.all(g, self.podCIDRs.exists(p, !isIP(g) || cidr(p).containsIP(g))) && self.podCIDRs.all(p, self.podGateways.filter(g, isIP(g) && cidr(p).containsIP(g)).size() <= 1)",message="podGateways must be addresses in podCIDRs, at most one in each CIDR"
// +kubebuilder:validation:XValidation:rule="!has(self.excludeIPs) || self.excludeIPs.all(e, self.podCIDRs.exists(p, isIP(e) ? cidr(p).containsIP(e) : !e.contains('..') || cidr(p).containsIP(e.substring(0, e.indexOf('..'))) && cidr(p).containsIP(e.substring(e.indexOf('..') + 2))))",message="excludeIPs must be in podCIDRs"
type Network struct {
	// podCIDRs of the subnet `ovn-default`. Once the subnet has them (status.podCIDRs), each can only change to a CIDR that contains it, and
	// a CIDR of a second family can follow. The subnet then grows.
	// +optional
	// +kubebuilder:default={"10.16.0.0/16"}
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=43
	// +listType=atomic
	// +kubebuilder:validation:XValidation:rule="self.all(c, isCIDR(c) && cidr(c) == cidr(c).masked())",message="must be CIDRs without bits after the prefix length",messageExpression=`'must be CIDRs without bits after the prefix length, such as 10.16.0.0/16, and are ' + self.join(', ')`
	// +kubebuilder:validation:XValidation:rule="self.size() < 2 || cidr(self[0]).ip().family() != cidr(self[1]).ip().family()",message="must have at most one CIDR of each family",messageExpression=`'must have at most one CIDR of each family: remove one of ' + self.join(' and ')`
	PodCIDRs []string `json:"podCIDRs,omitempty"`
	// podGateways are the gateways of the subnet `ovn-default`, at most one in each of podCIDRs. By default the first address of each CIDR. They
	// apply when the subnet is created; afterwards its `gateway` decides.
	// +optional
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=39
	// +listType=atomic
	// +kubebuilder:validation:XValidation:rule="self.all(g, isIP(g))",message="must be addresses"
	PodGateways []string `json:"podGateways,omitempty"`
	// podVlan is the Vlan of the subnet `ovn-default`, which makes it an underlay subnet: its pods have addresses of a physical network, and podGateways are
	// routers of that network. Create the Vlan and its ProviderNetwork with or after the OVNCluster. It applies when the subnet is created.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$')",message="must be the name of a Vlan"
	PodVlan string `json:"podVlan,omitempty"`
	// excludeIPs are addresses in podCIDRs, and ranges in the form `10.16.0.10..10.16.0.20`, that only pods get that request them. They apply
	// when the subnet `ovn-default` is created; afterwards its `excludeIps` decides.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=80
	// +listType=atomic
	// +kubebuilder:validation:XValidation:rule="self.all(e, isIP(e) || e.contains('..') && isIP(e.substring(0, e.indexOf('..'))) && isIP(e.substring(e.indexOf('..') + 2)))",message="must be addresses, or ranges like 10.16.0.10..10.16.0.20"
	ExcludeIPs []string `json:"excludeIPs,omitempty"`
	// joinCIDRs of the subnet `join`, which connects the nodes. It must have the families of podCIDRs. By default 100.64.0.0/16 and
	// fd00:100:64::/112, according to these families. They cannot change once the subnet has them (status.joinCIDRs).
	// +optional
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=43
	// +listType=atomic
	// +kubebuilder:validation:XValidation:rule="self.all(c, isCIDR(c) && cidr(c) == cidr(c).masked())",message="must be CIDRs without bits after the prefix length",messageExpression=`'must be CIDRs without bits after the prefix length, such as 10.16.0.0/16, and are ' + self.join(', ')`
	// +kubebuilder:validation:XValidation:rule="self.size() < 2 || cidr(self[0]).ip().family() != cidr(self[1]).ip().family()",message="must have at most one CIDR of each family",messageExpression=`'must have at most one CIDR of each family: remove one of ' + self.join(' and ')`
	JoinCIDRs []string `json:"joinCIDRs,omitempty"`
	// serviceCIDRs are the API server's --service-cluster-ip-range.
	// +optional
	// +kubebuilder:default={"10.96.0.0/12"}
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=43
	// +listType=atomic
	// +kubebuilder:validation:XValidation:rule="self.all(c, isCIDR(c) && cidr(c) == cidr(c).masked())",message="must be CIDRs without bits after the prefix length",messageExpression=`'must be CIDRs without bits after the prefix length, such as 10.16.0.0/16, and are ' + self.join(', ')`
	// +kubebuilder:validation:XValidation:rule="self.size() < 2 || cidr(self[0]).ip().family() != cidr(self[1]).ip().family()",message="must have at most one CIDR of each family",messageExpression=`'must have at most one CIDR of each family: remove one of ' + self.join(' and ')`
	ServiceCIDRs []string `json:"serviceCIDRs,omitempty"`
	// tunnelType is the encapsulation of packets between nodes, geneve or vxlan. While it changes, nodes offer both (status.tunnelTypes). With
	// vxlan a cluster has at most 4,095 subnets and VPCs, and a subnet 2,047 ports.
	// +optional
	// +kubebuilder:default=geneve
	TunnelType TunnelType `json:"tunnelType,omitempty"`
	// mtu of pods, in bytes. By default the MTU of the tunnel interface minus the encapsulation overhead (100 for geneve, 50 for vxlan; 20
	// more over IPv6).
	// +optional
	// +kubebuilder:validation:Minimum=576
	// +kubebuilder:validation:Maximum=65535
	MTU int32 `json:"mtu,omitempty"`
	// controlPlaneProtection limits the packets of each VPC that a node passes to ovn-controller.
	// +optional
	// +kubebuilder:default={}
	ControlPlaneProtection ControlPlaneProtection `json:"controlPlaneProtection,omitempty"`
	// externalGateways are settings of the ports of VPCs' routers in external subnets.
	// +optional
	ExternalGateways ExternalGateways `json:"externalGateways,omitempty"`
}
