// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/version"
	"github.com/kiln-net/kiln/supervisor"
	"github.com/kiln-net/kiln/supervisor/jsonrpc"
	"github.com/kiln-net/kiln/supervisor/openflow"
	"github.com/kiln-net/kiln/supervisor/unixctl"
)

// Figures of the daemons and of the datapaths.
var (
	statusDesc = prometheus.NewDesc("kube_ovn_ovs_status", "1 while the daemon answers on its control socket, otherwise 0.",
		[]string{"hostname", "component"}, nil)
	infoDesc = prometheus.NewDesc("kube_ovn_ovs_info", "Versions of Open vSwitch and of its database's schema; always 1.",
		[]string{"system_id", "rundir", "hostname", "system_type", "system_version", "ovs_version", "db_version"}, nil)
	failedDesc = prometheus.NewDesc("kube_ovn_failed_req_count", "Requests of figures that failed since the start of the process.",
		[]string{"hostname"}, nil)
	fileDesc = prometheus.NewDesc("kube_ovn_db_file_size_bytes", "Size of a database file.", []string{"hostname", "db_name"}, nil)

	connectedDesc = prometheus.NewDesc("kiln_ovn_controller_connected", "1 while ovn-controller is connected to the southbound database, otherwise 0.",
		[]string{"hostname"}, nil)
	stopwatchDesc = prometheus.NewDesc("kiln_ovn_controller_stopwatch_milliseconds", "Durations of a part of ovn-controller's main loop.",
		[]string{"hostname", "stopwatch", "statistic"}, nil)

	droppedDesc = prometheus.NewDesc("kiln_ovn_controller_dropped_packets_total", "Packets beyond a limit of spec.network.controlPlaneProtection that did not reach ovn-controller.",
		[]string{"hostname", "vpc", "kind"}, nil)

	guardDesc = prometheus.NewDesc("kiln_database_guard_applied",
		"1 while the rules of nftables for the databases' ports are as the OVNCluster requires, 0 after a failure or before the OVNCluster is known.", []string{"hostname"}, nil)
	rewrittenDesc = prometheus.NewDesc("kiln_database_guard_rewrites_total",
		"Changes of the rules for the databases' ports by other programs that the process has reverted.", []string{"hostname"}, nil)

	datapathDesc   = prometheus.NewDesc("kube_ovn_datapath", "A datapath that exists; always 1.", []string{"hostname", "datapath", "type"}, nil)
	datapathsDesc  = prometheus.NewDesc("kube_ovn_dp_total", "Datapaths of the node.", []string{"hostname"}, nil)
	portDesc       = prometheus.NewDesc("kube_ovn_dp_if", "A port of a datapath; always 1.", []string{"hostname", "datapath", "port", "type", "ofPort"}, nil)
	portsDesc      = prometheus.NewDesc("kube_ovn_dp_if_total", "Ports of a datapath.", []string{"hostname", "datapath"}, nil)
	flowsDesc      = prometheus.NewDesc("kube_ovn_dp_flows_total", "Flows in a datapath.", []string{"hostname", "datapath"}, nil)
	hitDesc        = prometheus.NewDesc("kube_ovn_dp_flows_lookup_hit", "Packets that had a flow in the datapath.", []string{"hostname", "datapath"}, nil)
	missedDesc     = prometheus.NewDesc("kube_ovn_dp_flows_lookup_missed", "Packets without a flow in the datapath.", []string{"hostname", "datapath"}, nil)
	lostDesc       = prometheus.NewDesc("kube_ovn_dp_flows_lookup_lost", "Packets that were dropped before ovs-vswitchd read them.", []string{"hostname", "datapath"}, nil)
	masksHitDesc   = prometheus.NewDesc("kube_ovn_dp_masks_hit", "Masks that lookups of packets have visited.", []string{"hostname", "datapath"}, nil)
	masksDesc      = prometheus.NewDesc("kube_ovn_dp_masks_total", "Masks in a datapath.", []string{"hostname", "datapath"}, nil)
	masksRatioDesc = prometheus.NewDesc("kube_ovn_dp_masks_hit_ratio", "Masks visited for each packet, on average.", []string{"hostname", "datapath"}, nil)

	connectionsDesc = prometheus.NewDesc("kiln_datapath_conntrack_entries", "Connections that the userspace datapath tracks.", []string{"hostname", "datapath"}, nil)
	limitDesc       = prometheus.NewDesc("kiln_datapath_conntrack_limit", "The largest number of connections that the userspace datapath can track.",
		[]string{"hostname", "datapath"}, nil)
)

// collect queries the daemons of the node and its database. It does not query a daemon again that has not answered, which would use up the time
// of the others.
func (n *node) collect(ctx context.Context, f *supervisor.Figures) {
	answers := n.collectStatus(ctx, f)
	if info, err := os.Stat(n.options.database()); err == nil {
		f.Gauge(fileDesc, float64(info.Size()), n.options.Node, "Open_vSwitch")
	}
	n.collectController(ctx, f, answers[n.controller] != "")
	var numbers map[string]string
	if answers[n.database] != "" {
		n.collectInfo(ctx, f, version.OfDaemon(answers[n.vswitch]))
		numbers = n.collectInterfaces(ctx, f)
	}
	if answers[n.vswitch] != "" {
		n.collectDatapaths(ctx, f, numbers)
	}
	if answers[n.vswitch] != "" && answers[n.controller] != "" {
		n.count(n.collectDropped(ctx, f))
	}
	n.mover.Collect(f)
	f.Present(guardDesc, n.guard.applied.Load(), n.options.Node)
	f.Counter(rewrittenDesc, float64(n.guard.rewritten.Load()), n.options.Node)
	f.Gauge(failedDesc, float64(n.failed.Load()), n.options.Node)
}

// count counts a failed request and reports whether err is nil.
func (n *node) count(err error) bool {
	if err != nil {
		n.failed.Add(1)
		n.options.Log.V(1).Info("no figures for metrics", "reason", err.Error())
	}
	return err == nil
}

// collectStatus returns the answers of the daemons, and "" of those that do not answer in time. The daemons are queried at the same time.
func (n *node) collectStatus(ctx context.Context, f *supervisor.Figures) map[*supervisor.Keeper]string {
	daemons := []*supervisor.Keeper{n.database, n.vswitch, n.controller}
	texts, errs := make([]string, len(daemons)), make([]error, len(daemons))
	var all sync.WaitGroup
	for i, daemon := range daemons {
		all.Go(func() { texts[i], errs[i] = answer(ctx, daemon, "version") })
	}
	all.Wait()
	answers := map[*supervisor.Keeper]string{}
	for i, daemon := range daemons {
		f.Present(statusDesc, n.count(errs[i]), n.options.Node, daemon.Daemon.Name)
		if errs[i] == nil {
			answers[daemon] = texts[i]
		}
	}
	return answers
}

// collectInfo takes the version of the running ovs-vswitchd.
func (n *node) collectInfo(ctx context.Context, f *supervisor.Figures, running string) {
	host := n.options.Node
	var rows []struct {
		ExternalIDs jsonrpc.Map[string] `json:"external_ids"`
		Type        jsonrpc.Set[string] `json:"system_type"`
		Version     jsonrpc.Set[string] `json:"system_version"`
	}
	var schema struct{ Version string }
	err := n.query(ctx, func(conn *jsonrpc.Conn) error {
		if err := conn.Call("get_schema", []any{databaseName}, &schema); err != nil {
			return err
		}
		return conn.Select(databaseName, "Open_vSwitch", []string{"external_ids", "system_type", "system_version"}, nil, &rows)
	})
	if !n.count(err) || len(rows) == 0 || running == "" {
		return
	}
	f.Gauge(infoDesc, 1, rows[0].ExternalIDs["system-id"], n.options.RunDir, host, rows[0].Type.First(), rows[0].Version.First(), running, schema.Version)
}

// databaseName is the name in Open vSwitch's schema.
const databaseName = "Open_vSwitch"

// query calls ask with a connection to the node's database.
func (n *node) query(ctx context.Context, ask func(*jsonrpc.Conn) error) error {
	conn, err := jsonrpc.Dial(ctx, n.options.socket())
	if err != nil {
		return err
	}
	defer conn.Close()
	return ask(conn)
}

// collectDatapaths takes the OpenFlow port numbers of interfaces by their names.
func (n *node) collectDatapaths(ctx context.Context, f *supervisor.Figures, numbers map[string]string) {
	text, err := n.vswitch.Call(ctx, "dpctl/show")
	if !n.count(err) {
		return
	}
	host, all := n.options.Node, unixctl.ParseDatapaths(text)
	f.Gauge(datapathsDesc, float64(len(all)), host)
	for _, d := range all {
		f.Gauge(datapathDesc, 1, host, d.Name, d.Type)
		f.Gauge(portsDesc, float64(len(d.Ports)), host, d.Name)
		f.Gauge(flowsDesc, d.Flows, host, d.Name)
		f.Counter(hitDesc, d.Hit, host, d.Name)
		f.Counter(missedDesc, d.Missed, host, d.Name)
		f.Counter(lostDesc, d.Lost, host, d.Name)
		if d.Masks != nil {
			f.Counter(masksHitDesc, d.Masks.Hit, host, d.Name)
			f.Gauge(masksDesc, d.Masks.Total, host, d.Name)
			f.Gauge(masksRatioDesc, d.Masks.Ratio, host, d.Name)
		}
		if n.everyPort.Load() {
			for _, p := range d.Ports {
				f.Gauge(portDesc, 1, host, d.Name, p.Name, p.Type, numbers[p.Name])
			}
		}
		if d.Type == "netdev" {
			n.collectConnections(ctx, f, d)
		}
	}
}

// collectConnections reads the connections of a userspace datapath. The agent exports the connections of the kernel.
func (n *node) collectConnections(ctx context.Context, f *supervisor.Figures, d unixctl.Datapath) {
	for command, desc := range map[string]*prometheus.Desc{"dpctl/ct-get-nconns": connectionsDesc, "dpctl/ct-get-maxconns": limitDesc} {
		text, err := n.vswitch.Call(ctx, command, d.Type+"@"+d.Name)
		if !n.count(err) {
			continue
		}
		if value, ok := unixctl.ParseNumber(text); ok {
			f.Gauge(desc, value, n.options.Node, d.Name)
		}
	}
}

func (n *node) collectController(ctx context.Context, f *supervisor.Figures, answers bool) {
	host := n.options.Node
	if !answers {
		f.Present(connectedDesc, false, host)
		return
	}
	status, err := n.controller.Call(ctx, "connection-status")
	f.Present(connectedDesc, n.count(err) && status == "connected", host)
	text, err := n.controller.Call(ctx, "stopwatch/show")
	if !n.count(err) {
		return
	}
	for _, s := range unixctl.ParseStopwatches(text) {
		f.Gauge(stopwatchDesc, s.Maximum, host, s.Name, "max")
		f.Gauge(stopwatchDesc, s.Percentile, host, s.Name, "p95")
		f.Gauge(stopwatchDesc, s.ShortTerm, host, s.Name, "short_term_average")
		f.Gauge(stopwatchDesc, s.LongTerm, host, s.Name, "long_term_average")
	}
	path := filepath.Join(n.options.certificates(), certificateFile)
	supervisor.CollectCertificate(f, host, "chassis", path)
}

// collectDropped reads the meters of VPCs that have dropped packets. ovn-controller knows their names, ovs-vswitchd their counters.
func (n *node) collectDropped(ctx context.Context, f *supervisor.Figures) error {
	text, err := n.controller.Call(ctx, "meter-table-list")
	if err != nil {
		return err
	}
	names := unixctl.ParseMeters(text)
	if len(names) == 0 {
		return nil
	}
	bridge, err := openflow.Dial(ctx, n.options.management())
	if err != nil {
		return err
	}
	dropped, err := bridge.Dropped()
	for id, packets := range dropped {
		if kind, vpc, ok := v1alpha1.ParsePacketMeter(names[id]); ok && packets > 0 {
			f.Counter(droppedDesc, float64(packets), n.options.Node, vpc, kind)
		}
	}
	return errors.Join(err, bridge.Close())
}
