// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/monitor"
	"github.com/kiln-net/kiln/internal/serving/scrape/scrapetest"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
	"github.com/kiln-net/kiln/supervisor/adminapi"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

// TestSeriesDoNotGrowWithPods compares the metrics of the databases, ovn-northd, kube-ovn-monitor and a node with many pods, and with a tenth of them. Some
// series of daemons begin late, so the smaller cluster, which is measured second, may have more.
func TestSeriesDoNotGrowWithPods(t *testing.T) {
	if !nodetest.Again(t) {
		return
	}
	nodetest.Wire(t)
	c := startCentral(t)
	o, newest := registered(t, c)
	ports, interfaces := scrapetest.Size(100, 10_000), scrapetest.Size(20, 250)
	addPorts(t, c, ports)
	addInterfaces(t, o, interfaces)

	processes := c.processes(t, o)
	series := func(process string) int { return scrapetest.Series(processes[process]()) }
	setPortSeries := func(all v1alpha1.PortSeries) {
		changed := c.cluster.DeepCopy()
		changed.Spec.Monitoring.PortSeries = all
		newest <- changed
	}
	before := map[string]int{}
	for process, scrape := range processes {
		before[process] = series(process)
		scrapetest.Report(t, fmt.Sprintf("%s, %d ports, %d on the node", process, ports, interfaces), scrape)
	}
	setPortSeries(v1alpha1.PortSeriesAll)
	supervisortest.Eventually(t, "each port has series", func() error {
		if got, want := series(kilnOVS), before[kilnOVS]+10*interfaces; got < want {
			return fmt.Errorf("%d series, want %d", got, want)
		}
		return nil
	})
	scrapetest.Report(t, fmt.Sprintf("%s with portSeries All, %d on the node", kilnOVS, interfaces), processes[kilnOVS])
	setPortSeries(v1alpha1.PortSeriesNode)

	removeMost(t, c, o, ports, interfaces)
	for process := range processes {
		supervisortest.Eventually(t, process+" has no series for ports", func() error {
			if few := series(process); few < before[process] || process == kilnOVS && few > before[process]+5*interfaces {
				return fmt.Errorf("%d series, and %d with %d times the ports", few, before[process], scrapetest.Growth)
			}
			return nil
		})
	}
}

const kilnOVS = "kiln ovs"

// processes returns a scrape of each process.
func (c central) processes(t *testing.T, o Options) map[string]func() string {
	t.Helper()
	at := func(component string, port uint16) monitor.Target {
		return monitor.Target{Node: "node-1", Component: component, Server: "server", Address: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)}
	}
	targets := []monitor.Target{
		at("ovsdb-server-northbound", adminapi.PortNorthbound), at("ovsdb-server-southbound", adminapi.PortSouthbound), at("ovn-northd", adminapi.PortNorthd),
	}
	read := func(body io.ReadCloser, err error) string {
		must.Succeed(t, err)
		defer body.Close()
		return string(must.Value(io.ReadAll(body)))
	}
	all := map[string]func() string{kilnOVS: func() string {
		response := must.Value(http.Get("http://" + o.HealthAddress + "/metrics"))
		return read(response.Body, nil)
	}}
	clients := map[uint16]*adminapi.Client{}
	for _, target := range targets {
		client := c.clientOf(t, adminapi.MonitorName, target.Address.Port())
		clients[target.Address.Port()] = client
		all[target.Component] = func() string { return read(client.Metrics(t.Context())) }
	}
	handler := promhttp.HandlerFor(&monitor.Monitor{
		Targets: func(context.Context) ([]monitor.Target, error) { return targets, nil },
		Client:  func(t monitor.Target) (*adminapi.Client, error) { return clients[t.Address.Port()], nil },
		Log:     supervisortest.Log(t),
	}, promhttp.HandlerOpts{})
	all["kube-ovn-monitor"] = func() string {
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody))
		if answer.Code != http.StatusOK {
			t.Error(errors.New(answer.Body.String()))
		}
		return answer.Body.String()
	}
	return all
}

const (
	switches = 10
	// batch is the number of ports in one call of a tool.
	batch = 250
)

func (c central) northbound() string {
	return "unix:" + filepath.Join(filepath.Dir(c.southbound), "ovnnb_db.sock")
}

// inBatches calls a tool with the commands for the numbers from low to high.
func inBatches(t *testing.T, tool, db string, low, high int, commands func(i int) []string) {
	t.Helper()
	for ; low < high; low += batch {
		args := []string{"--db=" + db, "--timeout=120"}
		for i := low; i < min(low+batch, high); i++ {
			args = append(append(args, "--"), commands(i)...)
		}
		command(t, tool, args...)
	}
}

// addPorts fills the northbound database, and waits for ovn-northd.
func addPorts(t *testing.T, c central, n int) {
	t.Helper()
	inBatches(t, "usr/bin/ovn-nbctl", c.northbound(), 0, switches, func(i int) []string { return []string{"ls-add", fmt.Sprintf("s%d", i)} })
	inBatches(t, "usr/bin/ovn-nbctl", c.northbound(), 0, n, func(i int) []string {
		port := fmt.Sprintf("pod-%d.default", i)
		address := fmt.Sprintf("0a:58:0a:10:%02x:%02x 10.16.%d.%d fd00:10:16::%x", i>>8, i&255, i>>8, i&255, i)
		return []string{"lsp-add", fmt.Sprintf("s%d", i%switches), port, "--", "lsp-set-addresses", port, address}
	})
	command(t, "usr/bin/ovn-nbctl", "--db="+c.northbound(), "--wait=sb", "--timeout=300", "sync")
}

func addInterfaces(t *testing.T, o Options, n int) {
	t.Helper()
	inBatches(t, "usr/bin/ovs-vsctl", "unix:"+o.socket(), 0, n, func(i int) []string {
		name := fmt.Sprintf("pod%d", i)
		return []string{"add-port", "br-int", name, "--", "set", "Interface", name, "type=internal", "external_ids:pod_name=" + name, "external_ids:pod_namespace=default"}
	})
}

// removeMost leaves a tenth of the ports and interfaces.
func removeMost(t *testing.T, c central, o Options, ports, interfaces int) {
	t.Helper()
	inBatches(t, "usr/bin/ovn-nbctl", c.northbound(), ports/scrapetest.Growth, ports, func(i int) []string { return []string{"lsp-del", fmt.Sprintf("pod-%d.default", i)} })
	command(t, "usr/bin/ovn-nbctl", "--db="+c.northbound(), "--wait=sb", "--timeout=300", "sync")
	inBatches(t, "usr/bin/ovs-vsctl", "unix:"+o.socket(), interfaces/scrapetest.Growth, interfaces, func(i int) []string {
		return []string{"del-port", "br-int", fmt.Sprintf("pod%d", i)}
	})
}
