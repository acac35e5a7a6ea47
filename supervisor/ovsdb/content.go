// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kiln-net/kiln/supervisor"
	"github.com/kiln-net/kiln/supervisor/jsonrpc"
)

// Figures of what the databases contain. Their numbers grow with subnets and nodes, not with pods.
var (
	switchDesc     = prometheus.NewDesc("kube_ovn_logical_switch_info", "A logical switch; always 1.", []string{"hostname", "uuid", "name"}, nil)
	externalIDDesc = prometheus.NewDesc("kube_ovn_logical_switch_external_id", "An external ID of a logical switch; always 1.",
		[]string{"hostname", "uuid", "key", "value", "logical_switch_name"}, nil)
	portsDesc     = prometheus.NewDesc("kube_ovn_logical_switch_ports_num", "Ports of a logical switch.", []string{"hostname", "uuid", "logical_switch_name"}, nil)
	tunnelKeyDesc = prometheus.NewDesc("kube_ovn_logical_switch_tunnel_key", "Tunnel key of a logical switch.", []string{"hostname", "uuid", "logical_switch_name"}, nil)
	chassisDesc   = prometheus.NewDesc("kube_ovn_chassis_info", "A chassis, for each address of its tunnels; always 1.", []string{"hostname", "uuid", "name", "ip"}, nil)
)

// collectContent reads the database of the leader.
func (m *member) collectContent(ctx context.Context, f *supervisor.Figures) error {
	conn, err := jsonrpc.Dial(ctx, m.options.socket())
	if err != nil {
		return err
	}
	defer conn.Close()
	if m.options.Database.Name == Northbound.Name {
		return m.collectSwitches(conn, f)
	}
	if err := m.collectChassis(conn, f); err != nil {
		return err
	}
	return m.collectTunnelKeys(conn, f)
}

func (m *member) collectSwitches(conn *jsonrpc.Conn, f *supervisor.Figures) error {
	var rows []struct {
		UUID        jsonrpc.UUID              `json:"_uuid"`
		Name        string                    `json:"name"`
		Ports       jsonrpc.Set[jsonrpc.UUID] `json:"ports"`
		ExternalIDs jsonrpc.Map[string]       `json:"external_ids"`
	}
	if err := conn.Select(m.options.Database.Name, "Logical_Switch", []string{"_uuid", "name", "ports", "external_ids"}, nil, &rows); err != nil {
		return err
	}
	host := m.options.Node
	for _, r := range rows {
		f.Gauge(switchDesc, 1, host, string(r.UUID), r.Name)
		f.Gauge(portsDesc, float64(len(r.Ports)), host, string(r.UUID), r.Name)
		for key, value := range r.ExternalIDs {
			f.Gauge(externalIDDesc, 1, host, string(r.UUID), key, value, r.Name)
		}
	}
	return nil
}

func (m *member) collectTunnelKeys(conn *jsonrpc.Conn, f *supervisor.Figures) error {
	var rows []struct {
		Key         float64             `json:"tunnel_key"`
		ExternalIDs jsonrpc.Map[string] `json:"external_ids"`
	}
	if err := conn.Select(m.options.Database.Name, "Datapath_Binding", []string{"tunnel_key", "external_ids"}, nil, &rows); err != nil {
		return err
	}
	for _, r := range rows {
		if uuid := r.ExternalIDs["logical-switch"]; uuid != "" { // otherwise a router
			f.Gauge(tunnelKeyDesc, r.Key, m.options.Node, uuid, r.ExternalIDs["name"])
		}
	}
	return nil
}

func (m *member) collectChassis(conn *jsonrpc.Conn, f *supervisor.Figures) error {
	var chassis []struct {
		UUID   jsonrpc.UUID              `json:"_uuid"`
		Name   string                    `json:"name"`
		Encaps jsonrpc.Set[jsonrpc.UUID] `json:"encaps"`
	}
	if err := conn.Select(m.options.Database.Name, "Chassis", []string{"_uuid", "name", "encaps"}, ofNodes(), &chassis); err != nil {
		return err
	}
	var encaps []struct {
		UUID jsonrpc.UUID `json:"_uuid"`
		IP   string       `json:"ip"`
	}
	if err := conn.Select(m.options.Database.Name, "Encap", []string{"_uuid", "ip"}, nil, &encaps); err != nil {
		return err
	}
	addresses := make(map[jsonrpc.UUID]string, len(encaps))
	for _, e := range encaps {
		addresses[e.UUID] = e.IP
	}
	for _, c := range chassis {
		shown := map[string]bool{} // a chassis has an Encap for each tunnel type
		for _, e := range c.Encaps {
			if ip := addresses[e]; !shown[ip] {
				shown[ip] = true
				f.Gauge(chassisDesc, 1, m.options.Node, string(c.UUID), c.Name, ip)
			}
		}
	}
	return nil
}
