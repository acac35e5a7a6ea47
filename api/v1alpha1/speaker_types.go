// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Defaults of Speaker.
const (
	DefaultHoldTime       = 90 * time.Second
	DefaultConnectRetry   = 10 * time.Second
	DefaultBFDInterval    = 300 * time.Millisecond
	DefaultRestartTime    = 90 * time.Second
	DefaultMaxReceived    = 20000
	DefaultMaxPrefixes    = 100
	DefaultBGPPort        = 179
	DefaultPasswordKey    = "password"
	DefaultBFDMultiplier  = 3
	DefaultMultihopTTL    = 1
	SpeakerAllNamespaces  = "*"
	MaxPeers              = 16
	MaxSpeakerStatusNodes = 32
)

// SpeakerNodeLabel with the value "true" selects the nodes of kube-ovn-speaker if the spec has no node selector.
const SpeakerNodeLabel = "ovn.kubernetes.io/bgp"

// PodConditionPeers is a condition on the pods of kube-ovn-speaker: whether the BGP sessions of the node are established. Its message lists
// the peers. The operator reports it in status.speaker.
const PodConditionPeers corev1.PodConditionType = "kubeovn.io/PeersEstablished"

// Connection defines which side opens the connection of a BGP session.
// +kubebuilder:validation:Enum=Active;Passive
type Connection string

// Values of Connection.
const (
	ConnectionActive  Connection = "Active"
	ConnectionPassive Connection = "Passive"
)

// RouteFamily is an address family of routes.
// +kubebuilder:validation:Enum=IPv4;IPv6
type RouteFamily string

// Values of RouteFamily.
const (
	RoutesIPv4 RouteFamily = "IPv4"
	RoutesIPv6 RouteFamily = "IPv6"
)

// ExtendedNextHop defines whether IPv4 routes have IPv6 next hops.
// +kubebuilder:validation:Enum=Enabled;Disabled
type ExtendedNextHop string

// Values of ExtendedNextHop.
const (
	ExtendedNextHopEnabled  ExtendedNextHop = "Enabled"
	ExtendedNextHopDisabled ExtendedNextHop = "Disabled"
)

// Speaker defines kube-ovn-speaker, which announces pods, subnets, Services, EgressAddresses and OvnEips to BGP routers. Objects with the annotation
// `ovn.kubernetes.io/bgp` are announced. Routes of peers are ignored. Its pods apply changes of namespaces and peers while they run, except for
// the names of Secrets and the first or last peer with connection Passive.
type Speaker struct {
	// asn is the number of the cluster's autonomous system.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4294967294
	ASN int64 `json:"asn"`
	// nodeSelector selects the nodes that announce routes. By default nodes with the label `ovn.kubernetes.io/bgp=true`. The pods on these nodes have
	// the passwords of all peers: use a label that kubelets cannot write, such as the default or one with the prefix `node-restriction.kubernetes.io/`.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// peers are the routers. Routes are announced to all of them.
	// +optional
	// +listType=map
	// +listMapKey=address
	// +kubebuilder:validation:MaxItems=16
	Peers []SpeakerPeer `json:"peers,omitempty"`
	// namespaces whose pods and Services may be announced by their annotations; `*` is every namespace. Users of a namespace can write these
	// annotations. Subnets, EgressAddresses and OvnEips are announced by their own annotation, which only administrators write; on a Subnet it also allows the annotations of their pods.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:XValidation:rule=`self.matches(r'^([*]|[a-z0-9]([-a-z0-9]*[a-z0-9])?)$')`,message="must be the name of a namespace, or * for all"
	Namespaces []string `json:"namespaces,omitempty"`
	// maxPrefixesPerNamespace is how many prefixes the annotations of the pods and Services of a namespace may announce. By default 100. Objects beyond it, the
	// youngest, are not announced. Addresses that an annotation of a Subnet or a pool of load balancers announces do not count.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	MaxPrefixesPerNamespace int32 `json:"maxPrefixesPerNamespace,omitempty"`
	Workload                `json:",inline"`
	// logLevel is the verbosity of kube-ovn-speaker; 0 is info, 1 adds decisions.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10
	LogLevel int32 `json:"logLevel,omitempty"`
}

// Selector returns the labels of the nodes with a speaker.
func (s *Speaker) Selector() map[string]string {
	if len(s.NodeSelector) > 0 {
		return s.NodeSelector
	}
	return map[string]string{SpeakerNodeLabel: "true"}
}

// SpeakerPeer is a BGP router.
// +kubebuilder:validation:XValidation:rule="isIP(self.address)",message="address must be an IP address"
// +kubebuilder:validation:XValidation:rule="!isIP(self.address) || ip.isCanonical(self.address) && ip(self.address).isGlobalUnicast()",message="address must be in canonical form, such as 192.0.2.1 or 2001:db8::1, and not unspecified, loopback, link-local or multicast"
// +kubebuilder:validation:XValidation:rule="!has(self.extendedNextHop) || self.extendedNextHop != 'Enabled' || !isIP(self.address) || ip(self.address).family() == 6",message="extendedNextHop needs a peer with an IPv6 address"
// +kubebuilder:validation:XValidation:rule="!has(self.bfd) || !has(self.multihopTTL) || self.multihopTTL == 1",message="bfd is for directly connected peers: it cannot be used with multihopTTL"
type SpeakerPeer struct {
	// address of the router.
	// +kubebuilder:validation:MaxLength=39
	Address string `json:"address"`
	// asn is the number of the router's autonomous system.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4294967294
	ASN int64 `json:"asn"`
	// port of the router. By default 179.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`
	// nodeSelector selects the nodes, among those of the speaker, that have a session with this router. By default all.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// sourceAddresses are CIDRs. A node connects from its first address in one of them, which is also the next hop of its routes. By default
	// the kernel chooses the address.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=43
	// +kubebuilder:validation:XValidation:rule="self.all(c, isCIDR(c))",message="must be CIDRs",messageExpression="'must be CIDRs, and are ' + self.join(', ')"
	SourceAddresses []string `json:"sourceAddresses,omitempty"`
	// password is the key of a Secret in the namespace of the operator with the password of the session (TCP MD5, RFC 2385). A changed
	// password is used after the kubelet has updated the files of the pod. Without the Secret no session begins;
	// an existing session continues.
	// +optional
	Password *SecretKey `json:"password,omitempty"`
	// connection is Active, the default, or Passive. Passive: the speaker listens on port 179 and the router connects.
	// +optional
	Connection Connection `json:"connection,omitempty"`
	// multihopTTL is the TTL of packets to a router of another autonomous system. 1, the default, is a directly connected router.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=255
	MultihopTTL int32 `json:"multihopTTL,omitempty"`
	// holdTime after which a silent router counts as failed, by default 90s. Keepalives are sent three times as often.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('3s') && duration(self) <= duration('65535s')",message="holdTime is 3s to 65535s"
	HoldTime *metav1.Duration `json:"holdTime,omitempty"`
	// connectRetry is the pause between two attempts to connect. By default 10s.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('1h')",message="connectRetry is 1s to 1h"
	ConnectRetry *metav1.Duration `json:"connectRetry,omitempty"`
	// bfd detects failures of the path to the router in less than holdTime (RFC 5881). The router must use BFD as well. By default off.
	// +optional
	BFD *BFD `json:"bfd,omitempty"`
	// gracefulRestart makes the router keep the routes while the speaker restarts (RFC 4724). By default off.
	// +optional
	GracefulRestart *SpeakerGracefulRestart `json:"gracefulRestart,omitempty"`
	// families of the routes that are announced. By default the family of address; with extendedNextHop both.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=2
	Families []RouteFamily `json:"families,omitempty"`
	// extendedNextHop is Enabled or Disabled, the default. Enabled: the next hop of IPv4 routes is the IPv6 address of the session (RFC 8950).
	// +optional
	ExtendedNextHop ExtendedNextHop `json:"extendedNextHop,omitempty"`
	// communities of the routes (RFC 1997), for example `64512:100` or `no-export`.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=32
	// +kubebuilder:validation:items:XValidation:rule=`self.matches(r'^((6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5]?[0-9]{1,4}):(6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5]?[0-9]{1,4})|no-export|no-advertise)$')`,message="must be two numbers up to 65535 with a colon between them, such as 64512:100, or no-export or no-advertise"
	Communities []string `json:"communities,omitempty"`
	// localPreference of the routes for a router of the same autonomous system. By default 100.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4294967295
	LocalPreference *int64 `json:"localPreference,omitempty"`
	// maxReceived is the maximum number of routes of a family that the router may send, by default 20000. Some routers send the cluster's own routes back. The speaker ignores these routes; a router that sends
	// more of them loses its session until this field or another field of the peer changes.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	MaxReceived int32 `json:"maxReceived,omitempty"`
}

// SecretKey is a key of a Secret in the namespace of the operator.
type SecretKey struct {
	// name of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')`,message="must be the name of a Secret"
	Name string `json:"name"`
	// key in the Secret. By default password.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^[A-Za-z0-9_-][-A-Za-z0-9._]*$')`,message="must be the key of a Secret: letters, digits, dots, hyphens and underscores"
	Key string `json:"key,omitempty"`
}

// SpeakerGracefulRestart defines graceful restarts.
type SpeakerGracefulRestart struct {
	// restartTime is how long the router keeps the routes without a session. By default 90s.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('4095s')",message="restartTime is 1s to 4095s"
	RestartTime *metav1.Duration `json:"restartTime,omitempty"`
}

// SessionState is the state of a BGP session.
// +kubebuilder:validation:Enum=Established;Down
type SessionState string

// Values of SessionState.
const (
	SessionEstablished SessionState = "Established"
	SessionDown        SessionState = "Down"
)

// SpeakerStatus is the state of the BGP sessions of all nodes.
type SpeakerStatus struct {
	// sessions is the number of sessions that the nodes report, established or not.
	// +optional
	Sessions int32 `json:"sessions"`
	// established is the number of established sessions.
	// +optional
	Established int32 `json:"established"`
	// nodes are at most 32: first those with a session that is not established.
	// +optional
	// +listType=map
	// +listMapKey=node
	// +kubebuilder:validation:MaxItems=32
	Nodes []SpeakerNodeStatus `json:"nodes,omitempty"`
}

// SpeakerNodeStatus is the state of the BGP sessions of a node.
type SpeakerNodeStatus struct {
	// node is the name of the node.
	Node string `json:"node"`
	// peers of the node.
	// +optional
	// +listType=map
	// +listMapKey=address
	// +kubebuilder:validation:MaxItems=16
	Peers []SpeakerPeerStatus `json:"peers,omitempty"`
}

// SpeakerPeerStatus is the state of one BGP session.
type SpeakerPeerStatus struct {
	// address of the router.
	Address string `json:"address"`
	// state is Established or Down.
	State SessionState `json:"state"`
}
