// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/limits"
	"github.com/kiln-net/kiln/internal/ovsdb/vswitch"
)

// Keys of an Interface's external_ids. The first four are ovn-controller's (ovn-controller(8), ovs-vswitchd.conf.db(5)). The other keys
// are Kube-OVN's, if it has an equivalent.
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
	keyOverlay      = "overlay_routes"
	keyMirrored     = "mirror"
)

// vendor marks the ports of pods and nodes.
const vendor = "kube-ovn"

// Attachment is one interface of one container, connected to a port of the integration bridge.
type Attachment struct {
	// Name of the port and of the host's end of the veth.
	Name string
	// LogicalPort is the name of the logical switch port. At most one port of the bridge has it.
	LogicalPort string
	// PodUID is passed to ovn-controller as iface-id-ver, so that it does not bind the port of an earlier pod of the same name.
	PodUID       string
	PodName      string
	PodNamespace string
	// ContainerID and IfName are the runtime's key of an attachment; Network is the name of its configuration.
	ContainerID string
	IfName      string
	Network     string
	// NetNS is the path of the container's network namespace.
	NetNS     string
	MAC       string
	Addresses []netip.Addr
	// CIDRs and Gateways are the subnet's values that are applied to the container's interface.
	CIDRs    []netip.Prefix
	Gateways []netip.Addr
	// ProbePorts are the TCP ports to which the kubelet connects, for pods of custom VPCs.
	ProbePorts []uint16
	// OverlayRoutes describes the routes to the overlay of a pod of an interconnected underlay subnet. Empty: it never had any.
	OverlayRoutes string
	// Mirrored requests copies of the port's packets on MirrorInterface. Attach sets it only; SetMirrored removes it as well.
	Mirrored bool
	// Limits are the limits that Attach applies. Nil leaves the limits of an existing port unchanged. They are not part of the record.
	Limits *limits.Port
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
		keyAddresses:    ipfamily.Join(a.Addresses),
		keyCIDRs:        ipfamily.Join(a.CIDRs),
		keyGateways:     ipfamily.Join(a.Gateways),
		keyContainer:    a.ContainerID,
		keyIfName:       a.IfName,
		keyNetwork:      a.Network,
	}
	if len(a.ProbePorts) > 0 {
		ids[keyProbePorts] = joinPorts(a.ProbePorts)
	}
	if a.OverlayRoutes != "" {
		ids[keyOverlay] = a.OverlayRoutes
	}
	if a.Mirrored {
		ids[keyMirrored] = mirrored
	}
	return ids
}

// attachmentOf parses a row. It returns false if the row does not belong to a pod.
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

		OverlayRoutes: ids[keyOverlay],
		Mirrored:      ids[keyMirrored] == mirrored,
	}
	a.Addresses = split(ids[keyAddresses], netip.ParseAddr)
	a.CIDRs = split(ids[keyCIDRs], netip.ParsePrefix)
	a.Gateways = split(ids[keyGateways], netip.ParseAddr)
	a.ProbePorts = split(ids[keyProbePorts], parsePort)
	return a, true
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

// is reports whether the row has all values of a. It ignores other keys, such as ovn-installed.
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

// PortError is the error that ovs-vswitchd reports for an interface that it cannot use.
type PortError struct{ Port, Reason string }

// Error names the port and the reason.
func (e *PortError) Error() string {
	return fmt.Sprintf("Open vSwitch cannot use interface %s: %s", e.Port, e.Reason)
}
