// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kiln-net/kiln/supervisor"
	"github.com/kiln-net/kiln/supervisor/jsonrpc"
)

// Properties of interfaces.
var (
	interfaceDesc  = prometheus.NewDesc("kube_ovn_interface", "An interface of Open vSwitch; always 1.", []string{"hostname", "uuid", "interfaceName"}, nil)
	adminStateDesc = prometheus.NewDesc("kube_ovn_interface_admin_state", "Administrative state of an interface: 0 down, 1 up, 2 unknown.",
		[]string{"hostname", "interfaceName"}, nil)
	linkStateDesc = prometheus.NewDesc("kube_ovn_interface_link_state", "State of an interface's link: 0 down, 1 up, 2 unknown.",
		[]string{"hostname", "interfaceName"}, nil)
	macDesc     = prometheus.NewDesc("kube_ovn_interface_mac_in_use", "MAC address of an interface; always 1.", []string{"hostname", "interfaceName", "mac_address"}, nil)
	mtuDesc     = prometheus.NewDesc("kube_ovn_interface_mtu", "MTU of an interface in bytes.", []string{"hostname", "interfaceName"}, nil)
	ofPortDesc  = prometheus.NewDesc("kube_ovn_interface_of_port", "OpenFlow port number of an interface.", []string{"hostname", "interfaceName"}, nil)
	ifIndexDesc = prometheus.NewDesc("kube_ovn_interface_if_index", "Index of an interface in the kernel.", []string{"hostname", "interfaceName"}, nil)
)

// counters are the statistics of an interface by their keys in the database (ovs-vswitchd.conf.db(5), Interface, statistics).
var counters = map[string]*prometheus.Desc{
	"tx_packets":           prometheus.NewDesc("kube_ovn_interface_tx_packets", "Packets that an interface sent.", []string{"hostname", "interfaceName", "pod_name", "pod_namespace"}, nil),
	"tx_bytes":             prometheus.NewDesc("kube_ovn_interface_tx_bytes", "Bytes that an interface sent.", []string{"hostname", "interfaceName", "pod_name", "pod_namespace"}, nil),
	"rx_packets":           prometheus.NewDesc("kube_ovn_interface_rx_packets", "Packets that an interface received.", []string{"hostname", "interfaceName", "pod_name", "pod_namespace"}, nil),
	"rx_bytes":             prometheus.NewDesc("kube_ovn_interface_rx_bytes", "Bytes that an interface received.", []string{"hostname", "interfaceName", "pod_name", "pod_namespace"}, nil),
	"rx_crc_err":           prometheus.NewDesc("kube_ovn_interface_rx_crc_err", "Received packets with a wrong checksum.", []string{"hostname", "interfaceName", "pod_name", "pod_namespace"}, nil),
	"rx_dropped":           prometheus.NewDesc("kube_ovn_interface_rx_dropped", "Received packets that were dropped.", []string{"hostname", "interfaceName", "pod_name", "pod_namespace"}, nil),
	"rx_errors":            prometheus.NewDesc("kube_ovn_interface_rx_errors", "Received packets with errors.", []string{"hostname", "interfaceName", "pod_name", "pod_namespace"}, nil),
	"rx_frame_err":         prometheus.NewDesc("kube_ovn_interface_rx_frame_err", "Received packets with framing errors.", []string{"hostname", "interfaceName", "pod_name", "pod_namespace"}, nil),
	"rx_missed_errors":     prometheus.NewDesc("kube_ovn_interface_rx_missed_err", "Packets that an interface missed.", []string{"hostname", "interfaceName", "pod_name", "pod_namespace"}, nil),
	"rx_over_err":          prometheus.NewDesc("kube_ovn_interface_rx_over_err", "Received packets that overran a buffer.", []string{"hostname", "interfaceName", "pod_name", "pod_namespace"}, nil),
	"tx_dropped":           prometheus.NewDesc("kube_ovn_interface_tx_dropped", "Packets that were dropped before they were sent.", []string{"hostname", "interfaceName", "pod_name", "pod_namespace"}, nil),
	"tx_errors":            prometheus.NewDesc("kube_ovn_interface_tx_errors", "Packets that could not be sent.", []string{"hostname", "interfaceName", "pod_name", "pod_namespace"}, nil),
	"collisions":           prometheus.NewDesc("kube_ovn_interface_collisions", "Collisions of an interface.", []string{"hostname", "interfaceName", "pod_name", "pod_namespace"}, nil),
	"rx_multicast_packets": prometheus.NewDesc("kube_ovn_interface_rx_multicast_packets", "Multicast packets that an interface received.", []string{"hostname", "interfaceName", "pod_name", "pod_namespace"}, nil),
}

// Values of the label interfaceName for the sums of interfaces without series of their own.
const (
	podsSum    = "pods"
	tunnelsSum = "tunnels"
)

// interfaceRow has the columns of an Interface that metrics need.
type interfaceRow struct {
	UUID        jsonrpc.UUID         `json:"_uuid"`
	Name        string               `json:"name"`
	Type        string               `json:"type"`
	ExternalIDs jsonrpc.Map[string]  `json:"external_ids"`
	AdminState  jsonrpc.Set[string]  `json:"admin_state"`
	LinkState   jsonrpc.Set[string]  `json:"link_state"`
	MAC         jsonrpc.Set[string]  `json:"mac_in_use"`
	MTU         jsonrpc.Set[float64] `json:"mtu"`
	OFPort      jsonrpc.Set[float64] `json:"ofport"`
	IfIndex     jsonrpc.Set[float64] `json:"ifindex"`
	Statistics  jsonrpc.Map[float64] `json:"statistics"`
}

// sum returns the name of the sum that has the interface's statistics if not every port has series of its own, or "".
func (r interfaceRow) sum() string {
	switch {
	case r.ExternalIDs["pod_name"] != "":
		return podsSum
	case r.Type == "geneve" || r.Type == "vxlan":
		return tunnelsSum
	}
	return ""
}

// collectInterfaces returns the OpenFlow port numbers of interfaces by their names.
func (n *node) collectInterfaces(ctx context.Context, f *supervisor.Figures) map[string]string {
	var rows []interfaceRow
	columns := []string{"_uuid", "name", "type", "external_ids", "admin_state", "link_state", "mac_in_use", "mtu", "ofport", "ifindex", "statistics"}
	err := n.query(ctx, func(conn *jsonrpc.Conn) error { return conn.Select(databaseName, "Interface", columns, nil, &rows) })
	if !n.count(err) {
		return nil
	}
	host, every := n.options.Node, n.everyPort.Load()
	numbers := map[string]string{}
	for _, r := range rows {
		numbers[r.Name] = strconv.Itoa(int(r.OFPort.First()))
		if r.sum() != "" && !every {
			continue
		}
		f.Gauge(interfaceDesc, 1, host, string(r.UUID), r.Name)
		f.Gauge(adminStateDesc, state(r.AdminState), host, r.Name)
		f.Gauge(linkStateDesc, state(r.LinkState), host, r.Name)
		f.Gauge(ofPortDesc, r.OFPort.First(), host, r.Name)
		f.Gauge(ifIndexDesc, r.IfIndex.First(), host, r.Name)
		if len(r.MTU) > 0 {
			f.Gauge(mtuDesc, r.MTU.First(), host, r.Name)
		}
		if mac := r.MAC.First(); mac != "" {
			f.Gauge(macDesc, 1, host, r.Name, mac)
		}
		collectCounters(f, r.Statistics, host, r.Name, r.ExternalIDs["pod_name"], r.ExternalIDs["pod_namespace"])
	}
	if !every {
		for name, statistics := range n.sums.add(rows, interfaceRow.sum) {
			collectCounters(f, statistics, host, name, "", "")
		}
	}
	return numbers
}

func collectCounters(f *supervisor.Figures, statistics map[string]float64, labels ...string) {
	for key, value := range statistics {
		if desc := counters[key]; desc != nil {
			f.Counter(desc, value, labels...)
		}
	}
}

func state(column jsonrpc.Set[string]) float64 {
	switch column.First() {
	case "down":
		return 0
	case "up":
		return 1
	}
	return 2
}
