// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipam"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// attachment is a pod with its lease and the subnet settings that its port needs.
type attachment struct {
	pod      *corev1.Pod
	key      types.NamespacedName // of the port, see portKey
	machine  string               // the virtual machine that the pod runs, or ""
	lease    ipam.Lease
	subnet   *kubeovnv1.Subnet
	cidrs    []netip.Prefix
	gateways []netip.Addr
	shared   []netip.Addr // addresses of Vips that a port with port security accepts as well
	dhcp     []translate.PodDHCP
	vlan     *kubeovnv1.Vlan // of an underlay subnet, or nil
	secure   bool            // the port drops packets from addresses other than its own
	groups   []string        // security groups that the pod is in
}

// port returns the inputs of the pod's rows. others are further pods of the same port.
func (a *attachment) port(others []*corev1.Pod) translate.PodInputs {
	in := translate.PodInputs{
		Namespace:    a.key.Namespace,
		Name:         a.key.Name,
		Node:         a.pod.Spec.NodeName,
		Subnet:       a.subnet.Name,
		Vpc:          a.vpc(),
		Addresses:    a.lease.Addresses,
		MAC:          a.lease.MAC,
		DHCP:         a.answersDHCP(),
		OwnDHCP:      a.dhcp,
		Vips:         sharedOf(a.subnet, a.pod),
		NorthGateway: kubeovnv1.ParseNorthGateway(a.pod.Annotations),
		Unknown:      forwards(a.pod) && !a.secure,
		Shared:       a.shared,
		PortSecurity: a.secure,
		Quiet:        a.vlan != nil && !runs(a.pod) && !slices.ContainsFunc(others, runs),
	}
	if a.subnet.Spec.PhysicalGateway() { // its traffic leaves through no node
		in.Vpc, in.NorthGateway = "", nil
	}
	if a.machine == "" {
		in.UID = string(a.pod.UID)
	}
	for _, other := range others {
		in.Others = append(in.Others, other.Spec.NodeName)
	}
	return in
}

// runs reports whether a pod has its network: then its node has found no other host with its addresses. A pod does not run while its node has not yet looked.
func runs(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning }

// answersDHCP returns the CIDRs in which the pod's subnet answers DHCP requests.
func (a *attachment) answersDHCP() []netip.Prefix {
	if !a.subnet.Spec.EnableDHCP {
		return nil
	}
	return a.cidrs
}

// network returns the settings that the agent needs to connect the pod.
func (a *attachment) network() kubeovnv1.PodNetwork {
	network := kubeovnv1.PodNetwork{
		UID:           a.pod.UID,
		Allocated:     true,
		Routed:        true,
		Addresses:     a.lease.Addresses,
		MAC:           a.lease.MAC,
		CIDRs:         a.cidrs,
		Gateways:      a.gateways,
		LogicalSwitch: a.subnet.Name,
		LogicalRouter: a.vpc(),
		MTU:           int(a.subnet.Spec.MTU),
		NICType:       kubeovnv1.PodNICTypeVeth,
		Machine:       a.machine,
		Groups:        a.groups,
	}
	if a.vlan != nil {
		network.ProviderNetwork, network.VLAN = a.vlan.Spec.Provider, a.vlan.Tag()
	}
	return network
}

// networkFor returns the network for another pod of the same port.
func (a *attachment) networkFor(pod *corev1.Pod) kubeovnv1.PodNetwork {
	network := a.network()
	network.UID = pod.UID
	return network
}

func (a *attachment) vpc() string { return cmp.Or(a.subnet.Spec.Vpc, kubeovnv1.DefaultVpc) }
