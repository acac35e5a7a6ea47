// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// InterfaceName is the name of a network interface of a node.
// +kubebuilder:validation:MaxLength=15
// +kubebuilder:validation:XValidation:rule=`self.matches(r'^[^/\s]+$')`,message="must be the name of an interface, without spaces and /"
type InterfaceName string

// NodeInterface says which interfaces are moved that the node uses itself.
// +kubebuilder:validation:Enum=Refuse;Static;All
type NodeInterface string

// Values of NodeInterface.
const (
	NodeInterfaceRefuse NodeInterface = "Refuse"
	NodeInterfaceStatic NodeInterface = "Static"
	NodeInterfaceAll    NodeInterface = "All"
)

// ProviderNetworkSpec defines a physical network and the interfaces of nodes that connect to it.
type ProviderNetworkSpec struct {
	// defaultInterface is the interface of every node that customInterfaces does not list.
	DefaultInterface InterfaceName `json:"defaultInterface"`
	// customInterfaces are the interfaces of nodes whose interface has another name. If several entries list a node, the first one counts.
	// +optional
	// +kubebuilder:validation:MaxItems=4096
	CustomInterfaces []CustomInterface `json:"customInterfaces,omitempty"`
	// excludeNodes are the names of nodes that do not connect to the network.
	// +optional
	ExcludeNodes []string `json:"excludeNodes,omitempty"`
	// nodeSelector selects the nodes that connect to the network. All nodes when empty.
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`
	// nodeInterface says what happens to an interface that the node uses itself, such as its only one. Refuse, the default: the node is not ready if the interface has addresses or
	// routes, or if a DHCP client, router advertisements, NetworkManager or systemd-networkd configure it. Static: the bridge takes over static addresses and routes; an interface that
	// another program configures is refused. All, experimental: also such an interface, and Kiln renews its addresses of DHCPv4 and routers on the bridge; the other program may stop
	// maintaining them. Nodes move one after the other, each on trial: a move that cuts the node off is undone, and other nodes wait. Kube-OVN does not have this field, and moves
	// interfaces with addresses.
	// +optional
	NodeInterface NodeInterface `json:"nodeInterface,omitempty"`
	// exchangeLinkName gives the bridge the name of the interface, and the interface the name of the bridge. This version ignores it.
	// +optional
	ExchangeLinkName bool `json:"exchangeLinkName,omitempty"`
	// autoCreateVlanSubinterfaces makes a node create its interface for this network if it is missing and has the name of a VLAN interface,
	// such as `eth0.10`: VLAN 10 on eth0. The node deletes it when the network is removed.
	// +optional
	AutoCreateVlanSubinterfaces bool `json:"autoCreateVlanSubinterfaces,omitempty"`
	// preserveVlanInterfaces has no effect: the VLAN interfaces that a node has on the interface always stay, with their addresses.
	// +optional
	PreserveVlanInterfaces bool `json:"preserveVlanInterfaces,omitempty"`
	// vlanInterfaces has no effect: all VLAN interfaces on the interface stay.
	// +optional
	VlanInterfaces []string `json:"vlanInterfaces,omitempty"`
}

// CustomInterface is the interface of some nodes.
type CustomInterface struct {
	// +optional
	Interface InterfaceName `json:"interface,omitempty"`
	// nodes are the names of the nodes.
	// +optional
	Nodes []string `json:"nodes,omitempty"`
}

// ProviderNetworkCondition describes one aspect of a ProviderNetwork, or of one node of it.
type ProviderNetworkCondition struct {
	// node is empty if the condition concerns the whole network.
	// +optional
	Node      string `json:"node,omitempty"`
	Condition `json:",inline"`
}

// ProviderNetworkStatus is the observed state of a ProviderNetwork.
type ProviderNetworkStatus struct {
	// conditions of the network, and of at most 100 nodes: Ready with the cause if the node is not ready, AddressesReached if the network does not reach
	// an address of the node.
	// +optional
	Conditions []ProviderNetworkCondition `json:"conditions,omitempty"`
	// ready is true if all selected nodes are ready.
	// +optional
	Ready bool `json:"ready"`
	// readyNodes are the nodes whose bridge works.
	// +optional
	ReadyNodes []string `json:"readyNodes,omitempty"`
	// notReadyNodes are the selected nodes without a working bridge.
	// +optional
	NotReadyNodes []string `json:"notReadyNodes,omitempty"`
	// turn is the node that may move an interface with addresses now, one in the cluster. It passes to another node when the move has succeeded, when
	// the node is refused or no longer selected, or when it does not begin. After a change of the specification, the first node that waits has it.
	// +optional
	Turn *ProviderNetworkTurn `json:"turn,omitempty"`
	// vlans are the names of the Vlans of this network.
	// +optional
	Vlans []string `json:"vlans,omitempty"`
}

// ProviderNetworkTurn permits one node to move an interface with addresses.
type ProviderNetworkTurn struct {
	// node is the name of the node.
	Node string `json:"node"`
	// generation of the specification for which the node has its turn. It is an earlier one while the node may still be ending a move after a change.
	Generation int64 `json:"generation"`
	// failed is true if the node's move was undone. Other nodes wait until a later one succeeds.
	// +optional
	Failed bool `json:"failed,omitempty"`
	// withdrawn is true if the node has not begun its move. It may not begin any longer, and another node gets the turn a little later.
	// +optional
	Withdrawn bool `json:"withdrawn,omitempty"`
	// since is when the node got the turn, or when it was withdrawn.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
}

// HasTurn reports whether a node may move an interface with addresses.
func (n *ProviderNetwork) HasTurn(node string) bool {
	turn := n.Status.Turn
	return turn != nil && turn.Node == node && turn.Generation == n.Generation && !turn.Withdrawn
}

// ConditionAddressesReached of a node is False, with the reason ReasonAddressNotReached, while the network does not reach an address of the node, because it
// has come to an interface that moved to a bridge.
const (
	ConditionAddressesReached = "AddressesReached"
	ReasonAddressNotReached   = "AddressNotReached"
)

// OwnConditions returns the conditions of the network itself, without the conditions of nodes.
func (s *ProviderNetworkStatus) OwnConditions() []metav1.Condition {
	var own []metav1.Condition
	for _, c := range s.Conditions {
		if c.Node == "" {
			own = append(own, c.Condition)
		}
	}
	return own
}

// ProviderNetwork is a physical network that nodes connect to with a bridge, `br-<name>`. Its name has at most 12 characters.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=provider-networks,singular=provider-network,shortName=pn,categories=kiln
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="DefaultInterface",type=string,JSONPath=`.spec.defaultInterface`
// +kubebuilder:printcolumn:name="Ready",type=boolean,JSONPath=`.status.ready`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ProviderNetwork struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec ProviderNetworkSpec `json:"spec,omitempty"`
	// +optional
	Status ProviderNetworkStatus `json:"status,omitempty"`
}

// ProviderNetworkList is a list of ProviderNetworks.
// +kubebuilder:object:root=true
type ProviderNetworkList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ProviderNetwork `json:"items"`
}

// VlanSpec defines a VLAN of a physical network.
// +kubebuilder:validation:XValidation:rule="self.provider == oldSelf.provider",message="provider cannot change: create another Vlan"
type VlanSpec struct {
	// id of the VLAN. 0 is untagged.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4095
	ID int `json:"id,omitempty"`
	// provider is the name of the ProviderNetwork. It cannot change.
	Provider string `json:"provider"`
	// vlanId is an older name of id. It counts if id is 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4095
	VlanID int `json:"vlanId,omitempty"`
	// providerInterfaceName is an older name of provider. It has no effect, because provider is required.
	// +optional
	ProviderInterfaceName string `json:"providerInterfaceName,omitempty"`
}

// VlanStatus is the observed state of a Vlan.
type VlanStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
	// subnets are the names of the Subnets of this VLAN.
	// +optional
	Subnets []string `json:"subnets,omitempty"`
	// conflict is true if another Vlan has the same id and provider, and works with it or is older. This Vlan keeps validatedID; without one, its
	// subnets wait.
	// +optional
	Conflict bool `json:"conflict,omitempty"`
	// validatedID is the last id that was found valid. Subnets have it, and no other Vlan of the provider gets it.
	// +optional
	ValidatedID *int `json:"validatedID,omitempty"`
}

// Vlan is a VLAN of a ProviderNetwork.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=vlans,singular=vlan,shortName=vlan,categories=kiln
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="ID",type=string,JSONPath=`.spec.id`
// +kubebuilder:printcolumn:name="Provider",type=string,JSONPath=`.spec.provider`
// +kubebuilder:printcolumn:name="conflict",type=boolean,JSONPath=`.status.conflict`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type Vlan struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec VlanSpec `json:"spec,omitempty"`
	// +optional
	Status VlanStatus `json:"status,omitempty"`
}

// VlanList is a list of Vlans.
// +kubebuilder:object:root=true
type VlanList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Vlan `json:"items"`
}

// Tag returns the tag in the spec, 0 for untagged packets.
func (v *Vlan) Tag() int { return cmp.Or(v.Spec.ID, v.Spec.VlanID) }

// ChecksGateway reports whether pods of the subnet start only when its gateway answers: a router of the physical network, which is not checked
// by OVN.
func (s *SubnetSpec) ChecksGateway() bool {
	return s.PhysicalGateway() && !s.DisableGatewayCheck
}

// Selects reports whether the network includes a node. The error reports an invalid nodeSelector.
func (s *ProviderNetworkSpec) Selects(node string, nodeLabels map[string]string) (bool, error) {
	if slices.Contains(s.ExcludeNodes, node) {
		return false, nil
	}
	if s.NodeSelector == nil {
		return true, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(s.NodeSelector)
	if err != nil {
		return false, fmt.Errorf("nodeSelector: %w", err)
	}
	return selector.Empty() || selector.Matches(labels.Set(nodeLabels)), nil
}

// InterfaceOf returns the name of a node's interface.
func (s *ProviderNetworkSpec) InterfaceOf(node string) string {
	for _, custom := range s.CustomInterfaces {
		if custom.Interface != "" && slices.Contains(custom.Nodes, node) {
			return string(custom.Interface)
		}
	}
	return string(s.DefaultInterface)
}

// Keys of labels and annotations of nodes about a ProviderNetwork. Agents write them on their own Node.
const (
	// ProviderReady is a label with the value "true" while the node's bridge works.
	ProviderReady = "ready"
	// ProviderInterface and ProviderMTU are labels with the name and the MTU of the node's interface.
	ProviderInterface = "interface"
	ProviderMTU       = "mtu"
	// ProviderMoved is the label, with the value true, of a node whose bridge has taken over addresses of the interface.
	ProviderMoved = "moved"
	// ProviderError is an annotation with the reason why the node's bridge does not work, or, next to ProviderReady, with a warning: a word, a colon,
	// and a message.
	ProviderError = "err_mesg"
	// ProviderSilentGateways is an annotation with the gateways of underlay subnets that have not answered pods of the node (SilentGateways).
	ProviderSilentGateways = "silent_gateways"
	// ProviderKeySuffix ends the prefix of all these keys.
	ProviderKeySuffix = ".provider-network.kubernetes.io"
)

// ProviderKey returns the key of a label or an annotation of nodes about a ProviderNetwork.
func ProviderKey(provider, name string) string { return provider + ProviderKeySuffix + "/" + name }

// maxSilentGateways is the maximum number of gateways that a node reports.
const maxSilentGateways = 100

// SilentGateway is a gateway of an underlay subnet that has not answered pods of a node. SilentGateways sets Provider, the ProviderNetwork of the report.
// +kubebuilder:object:generate=false
type SilentGateway struct {
	Provider string
	Subnet   string
	Address  netip.Addr
}

// FormatSilentGateways returns the value of ProviderSilentGateways, with at most maxSilentGateways of them.
func FormatSilentGateways(gateways []SilentGateway) string {
	texts := make([]string, 0, len(gateways))
	for _, g := range gateways[:min(len(gateways), maxSilentGateways)] {
		texts = append(texts, g.Subnet+"/"+g.Address.String())
	}
	return strings.Join(texts, ",")
}

// SilentGateways returns the gateways that a node reports, for all ProviderNetworks in the order of their names: at most maxSilentGateways. Malformed
// entries are left out.
func SilentGateways(annotations map[string]string) []SilentGateway {
	var gateways []SilentGateway
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		provider, is := strings.CutSuffix(key, ProviderKey("", ProviderSilentGateways))
		if !is {
			continue
		}
		for text := range strings.SplitSeq(annotations[key], ",") {
			subnet, address, _ := strings.Cut(text, "/")
			if a, err := netip.ParseAddr(address); err == nil && len(gateways) < maxSilentGateways {
				gateways = append(gateways, SilentGateway{provider, subnet, a})
			}
		}
	}
	return gateways
}
