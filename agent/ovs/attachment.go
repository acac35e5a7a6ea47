// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/kiln-net/kiln/internal/ovsdb/vswitch"
)

// Keys of an Interface's external_ids. The first four are ovn-controller's (ovn-controller(8), ovs-vswitchd.conf.db(5)); those of
// pods are Kube-OVN's as far as it has them.
const (
	keyLogicalPort  = "iface-id"
	keyVersion      = "iface-id-ver"
	keyMAC          = "attached-mac"
	keyInstalled    = "ovn-installed"
	keyVendor       = "vendor"
	keyPodName      = "pod_name"
	keyPodNamespace = "pod_namespace"
	keyNetNS        = "pod_netns"
	keyAddresses    = "ip"
	keyCIDRs        = "cidr"
	keyGateways     = "gateway"
	keyContainer    = "container_id"
	keyIfName       = "if_name"
	keyNetwork      = "cni_network"
	keyProbePorts   = "probe_ports"
)

// vendor marks the ports of pods and nodes.
const vendor = "kube-ovn"

// Attachment is one interface of one container, as a port of the integration bridge.
type Attachment struct {
	// Name of the port and of the host's end of the veth.
	Name string
	// LogicalPort is the name of the logical switch port that this port is. At most one port of the bridge is it.
	LogicalPort string
	// PodUID is handed to ovn-controller as iface-id-ver: a port of a pod's predecessor is never taken for the pod's.
	PodUID       string
	PodName      string
	PodNamespace string
	// ContainerID and IfName are the runtime's key of an attachment, Network the name of its configuration.
	ContainerID string
	IfName      string
	Network     string
	// NetNS is the path of the container's network namespace.
	NetNS     string
	MAC       string
	Addresses []netip.Addr
	// CIDRs and Gateways are those of the subnet that the container's interface was brought to. Ports of earlier versions say none.
	CIDRs    []netip.Prefix
	Gateways []netip.Addr
	// ProbePorts are the TCP ports to which the kubelet connects, of pods of custom VPCs. Nil is not known: ports of earlier versions, and of
	// other pods, say none. Empty is known to be none.
	ProbePorts []uint16
}

func (a Attachment) externalIDs() map[string]string {
	ids := map[string]string{
		keyLogicalPort:  a.LogicalPort,
		keyVersion:      a.PodUID,
		keyMAC:          a.MAC,
		keyVendor:       vendor,
		keyPodName:      a.PodName,
		keyPodNamespace: a.PodNamespace,
		keyNetNS:        a.NetNS,
		keyAddresses:    join(a.Addresses),
		keyCIDRs:        join(a.CIDRs),
		keyGateways:     join(a.Gateways),
		keyContainer:    a.ContainerID,
		keyIfName:       a.IfName,
		keyNetwork:      a.Network,
	}
	if a.ProbePorts != nil {
		ids[keyProbePorts] = joinPorts(a.ProbePorts)
	}
	return ids
}

// attachmentOf reads a row back; false when the row is no pod's.
func attachmentOf(row *vswitch.Interface) (Attachment, bool) {
	ids := row.ExternalIDs
	if ids[keyVendor] != vendor || ids[keyContainer] == "" {
		return Attachment{}, false
	}
	a := Attachment{
		Name:         row.Name,
		LogicalPort:  ids[keyLogicalPort],
		PodUID:       ids[keyVersion],
		PodName:      ids[keyPodName],
		PodNamespace: ids[keyPodNamespace],
		ContainerID:  ids[keyContainer],
		IfName:       ids[keyIfName],
		Network:      ids[keyNetwork],
		NetNS:        ids[keyNetNS],
		MAC:          ids[keyMAC],
	}
	a.Addresses = split(ids[keyAddresses], netip.ParseAddr)
	a.CIDRs = split(ids[keyCIDRs], netip.ParsePrefix)
	a.Gateways = split(ids[keyGateways], netip.ParseAddr)
	if ports, known := ids[keyProbePorts]; known {
		a.ProbePorts = append([]uint16{}, split(ports, parsePort)...)
	}
	return a, true
}

func join[T fmt.Stringer](values []T) string {
	parts := make([]string, len(values))
	for i, value := range values {
		parts[i] = value.String()
	}
	return strings.Join(parts, ",")
}

func joinPorts(ports []uint16) string {
	parts := make([]string, len(ports))
	for i, port := range ports {
		parts[i] = strconv.Itoa(int(port))
	}
	return strings.Join(parts, ",")
}

func parsePort(text string) (uint16, error) {
	port, err := strconv.ParseUint(text, 10, 16)
	return uint16(port), err
}

func split[T any](list string, parse func(string) (T, error)) (values []T) {
	for part := range strings.SplitSeq(list, ",") {
		if value, err := parse(part); err == nil {
			values = append(values, value)
		}
	}
	return values
}

// is reports whether the row says all that a says. Keys of others, such as ovn-installed, do not count.
func (a Attachment) is(row *vswitch.Interface) bool {
	return row.Type == "" && row.Error == nil && holds(row.ExternalIDs, a.externalIDs())
}

func holds(have, want map[string]string) bool {
	for key, value := range want {
		if have[key] != value {
			return false
		}
	}
	return true
}

// PortError is what ovs-vswitchd says about an interface that it cannot use.
type PortError struct{ Port, Reason string }

// Error names the port and the reason.
func (e *PortError) Error() string {
	return fmt.Sprintf("Open vSwitch cannot use interface %s: %s", e.Port, e.Reason)
}
