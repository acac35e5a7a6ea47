// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package nbtest

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kiln-net/kiln/internal/ovsdb/schema"
	"github.com/kiln-net/kiln/internal/testing/daemontest"
)

// Chassis is an ovn-controller with its own Open vSwitch, whose datapath is the userspace one with dummy interfaces: it forwards the frames of Send
// and Inject between its own ports.
type Chassis struct {
	northd     *Northd
	name       string
	database   *Server // of Open vSwitch
	controller *daemontest.Daemon
	// Switch is ovs-vswitchd.
	Switch *daemontest.Daemon
}

// Chassis starts a chassis that binds logical ports, each with its iface-id-ver (ovn-controller(8)) or "", and returns once they are up. It runs
// until the test ends.
func (n *Northd) Chassis(name string, ports map[string]string) *Chassis {
	n.nb.t.Helper()
	n.chassis++ // two chassis cannot have one address
	c := &Chassis{northd: n, name: name, database: create(newServer(n.nb.t, "Open_vSwitch", schema.VSwitch))}
	settings := []string{
		"--", "init", "--", "set", "Open_vSwitch", ".", "external_ids:system-id=" + name, "external_ids:ovn-remote=" + n.Southbound.Endpoint(),
		"external_ids:ovn-encap-type=geneve", "external_ids:ovn-encap-ip=127.0.0." + strconv.Itoa(n.chassis), "external_ids:ovn-monitor-all=true",
		"--", "add-br", "br-int", "--", "set", "Bridge", "br-int", "datapath_type=dummy", "fail_mode=secure",
	}
	for port, version := range ports {
		settings = append(settings, "--", "add-port", "br-int", port, "--", "set", "Interface", port, "type=dummy",
			"external_ids:iface-id="+port, "options:tx_pcap="+c.capture(port))
		if version != "" {
			settings = append(settings, "external_ids:iface-id-ver="+version)
		}
	}
	c.run("usr/bin/ovs-vsctl", append([]string{"--no-wait", "--db=" + c.database.Endpoint()}, settings...)...)
	c.Switch = c.start("usr/lib/openvswitch-switch/ovs-vswitchd", "--enable-dummy=override", "--disable-system")
	c.controller = c.start("usr/bin/ovn-controller")
	n.Await("the ports of chassis "+name, func(sb *Server) bool {
		up := 0
		for _, row := range sb.Rows("Port_Binding") {
			if _, ours := ports[row["logical_port"].(string)]; ours && row["up"] == true {
				up++
			}
		}
		return up == len(ports)
	})
	return c
}

// start runs a daemon on the database of Open vSwitch until the test ends.
func (c *Chassis) start(path string, options ...string) *daemontest.Daemon {
	c.northd.nb.t.Helper()
	name := filepath.Base(path)
	options = append(options, "--unixctl="+filepath.Join(c.database.dir, name+".ctl"), "-vconsole:warn", "-vfile:off", "-vsyslog:off", c.database.Endpoint())
	return daemontest.Start(c.northd.nb.t, name, filepath.Join(c.database.dir, name+".log"), c.database.program(path, options...))
}

// run runs a program and returns its output.
func (c *Chassis) run(path string, args ...string) string {
	c.northd.nb.t.Helper()
	out, err := c.database.program(path, args...).CombinedOutput()
	if err != nil {
		c.northd.nb.t.Fatalf("%s %s: %v\n%s", filepath.Base(path), strings.Join(args, " "), err, out)
	}
	return string(out)
}

// PID is the process ID of ovn-controller.
func (c *Chassis) PID() int { return c.controller.PID() }

// Flows returns the number of OpenFlow flows of the chassis, after it has installed the contents of the northbound database.
func (c *Chassis) Flows() int {
	c.northd.nb.t.Helper()
	c.Sync()
	aggregate := c.openFlow("dump-aggregate")
	_, count, _ := strings.Cut(aggregate, "flow_count=")
	flows, err := strconv.Atoi(strings.TrimSpace(count))
	if err != nil {
		c.northd.nb.t.Fatalf("ovs-ofctl dump-aggregate: %s", aggregate)
	}
	return flows
}

// openFlow runs a command of ovs-ofctl(8) on the integration bridge.
func (c *Chassis) openFlow(command string) string {
	c.northd.nb.t.Helper()
	return c.run("usr/bin/ovs-ofctl", "-OOpenFlow15", command, "unix:"+filepath.Join(c.database.dir, "br-int.mgmt"))
}

// DumpFlows returns the OpenFlow flows of the chassis, after it has installed the contents of the northbound database.
func (c *Chassis) DumpFlows() string {
	c.northd.nb.t.Helper()
	c.Sync()
	return c.openFlow("dump-flows")
}

// injected is the number of frames that a dummy interface can queue.
const injected = 100

// Inject makes a port receive frames from its pod. They are hexadecimal digits or flows with the fields of a packet (ovs-fields(7)). If there are
// many, Open vSwitch may lose some before it reads them.
func (c *Chassis) Inject(port string, frames ...string) {
	c.northd.nb.t.Helper()
	for some := range slices.Chunk(frames, injected) {
		c.control(append([]string{"netdev-dummy/receive", port}, some...)...)
	}
}

// Sent returns the frames that the chassis has sent to a port.
func (c *Chassis) Sent(port string) [][]byte {
	c.northd.nb.t.Helper()
	const fileHeader, recordHeader, length = 24, 16, 8 // pcap-savefile(5)
	content, err := os.ReadFile(c.capture(port))
	if err != nil {
		c.northd.nb.t.Fatal(err)
	}
	var frames [][]byte
	for content = content[min(fileHeader, len(content)):]; len(content) >= recordHeader; {
		end := recordHeader + int(binary.NativeEndian.Uint32(content[length:]))
		if end > len(content) {
			break // it is being written
		}
		frames = append(frames, content[recordHeader:end])
		content = content[end:]
	}
	return frames
}

// meterStats matches the statistics of a meter with one band.
var meterStats = regexp.MustCompile(`(?s)meter:(\d+) flow_count:\d+ packet_in_count:(\d+) .*?0: packet_count:(\d+)`)

// Meter holds the numbers of packets that a meter has counted.
type Meter struct{ Packets, Dropped int }

// Meters returns the meters of the chassis by name.
func (c *Chassis) Meters() map[string]Meter {
	c.northd.nb.t.Helper()
	c.Sync()
	byID := map[string]Meter{}
	for _, m := range meterStats.FindAllStringSubmatch(c.openFlow("meter-stats"), -1) {
		packets, _ := strconv.Atoi(m[2])
		dropped, _ := strconv.Atoi(m[3])
		byID[m[1]] = Meter{Packets: packets, Dropped: dropped}
	}
	all := map[string]Meter{}
	for line := range strings.Lines(c.run("usr/bin/ovn-appctl", "-t", filepath.Join(c.database.dir, "ovn-controller.ctl"), "meter-table-list")) {
		if name, id, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
			all[name] = byID[id]
		}
	}
	return all
}

// Sync waits until the chassis has installed the contents of the northbound database (ovn-nb(5), NB_Global nb_cfg), and Open vSwitch has compared the
// cached flows of its datapath with them (ovs-vswitchd(8)).
func (c *Chassis) Sync() {
	nb := c.northd.nb
	nb.t.Helper()
	want := nb.nextConfig()
	c.northd.Await("the state of the chassis", func(sb *Server) bool {
		for _, row := range sb.Rows("Chassis_Private") {
			if row["name"] == c.name {
				return row["nb_cfg"] == want
			}
		}
		return false
	})
	c.control("revalidator/wait")
}

// control runs a command of ovs-vswitchd.
func (c *Chassis) control(command ...string) {
	c.northd.nb.t.Helper()
	c.run("usr/bin/ovs-appctl", append([]string{"-t", filepath.Join(c.database.dir, "ovs-vswitchd.ctl")}, command...)...)
}

// Rows returns the rows of a table of the chassis' Open vSwitch database by UUID.
func (c *Chassis) Rows(table string) map[string]Row { return c.database.Rows(table) }

// VSCtl runs ovs-vsctl(8) on the chassis.
func (c *Chassis) VSCtl(args ...string) {
	c.northd.nb.t.Helper()
	c.run("usr/bin/ovs-vsctl", append([]string{"--no-wait", "--db=" + c.database.Endpoint()}, args...)...)
}
