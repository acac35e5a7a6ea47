// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"time"

	"github.com/kiln-net/kiln/internal/ovsdb/schema"
	"github.com/kiln-net/kiln/supervisor/jsonrpc"
)

// chassisName is the name of the chassis and of its node, which runs only the pods of the probes.
const chassisName = "chassis"

// chassis is an ovn-controller with its own Open vSwitch, whose datapath is the one in userspace and whose interfaces are dummies:
// each is a Unix socket that carries packets.
type chassis struct {
	world *world
	// flows reports changes of the OpenFlow flows in br-int, as ovs-ofctl(8) prints them.
	flows *mentions
}

// startChassis starts a chassis with interfaces for logical ports, by name with the pod's UID. It returns when ovn-controller has
// bound them and installed their flows.
func (w *world) startChassis(ctx context.Context, ports map[string]string) (*chassis, error) {
	if err := w.startDatabase("vswitch", schema.VSwitch); err != nil {
		return nil, err
	}
	database := "unix:" + w.socket("vswitch")
	// as supervisor/ovs sets them
	settings := []string{
		"--no-wait", "--db=" + database, "--", "init", "--", "set", "Open_vSwitch", ".", "external_ids:system-id=" + chassisName,
		"external_ids:ovn-remote=unix:" + w.socket("sb"), "external_ids:ovn-encap-type=geneve", "external_ids:ovn-encap-ip=" + w.address,
		"external_ids:ovn-monitor-all=true",
		"--", "add-br", "br-int", "--", "set", "Bridge", "br-int", "datapath_type=dummy", "fail_mode=secure",
	}
	for port, uid := range ports {
		settings = append(settings, "--", "add-port", "br-int", port, "--", "set", "Interface", port, "type=dummy",
			"options:pstream=punix:"+w.interfaceSocket(port), "external_ids:iface-id="+port, "external_ids:iface-id-ver="+uid)
	}
	if out, err := w.ovn("usr/bin/ovs-vsctl", settings...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("ovs-vsctl: %w\n%s", err, out)
	}
	for name, path := range map[string]string{"ovs-vswitchd": "usr/lib/openvswitch-switch/ovs-vswitchd", "ovn-controller": "usr/bin/ovn-controller"} {
		args := []string{"--unixctl=" + filepath.Join(w.dir, name+".ctl"), "-vconsole:warn", "-vsyslog:off"}
		if name == "ovs-vswitchd" {
			args = append(args, "--enable-dummy=override", "--disable-system")
		}
		if err := w.startOVN(name, path, append(args, database)...); err != nil {
			return nil, err
		}
	}
	c := &chassis{world: w}
	if err := c.followFlows(); err != nil {
		return nil, err
	}
	return c, c.bound(ctx, ports)
}

func (w *world) interfaceSocket(port string) string { return filepath.Join(w.dir, port+".sock") }

// dial connects to the interface of a logical port: the connection sends and receives the pod's packets.
func (c *chassis) dial(ctx context.Context, port string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", c.world.interfaceSocket(port))
	if err != nil {
		return nil, fmt.Errorf("dial the interface %s: %w", port, err)
	}
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	return conn, nil
}

// followFlows starts ovs-ofctl, which prints each change of the flows in br-int.
func (c *chassis) followFlows() error {
	w := c.world
	socket := filepath.Join(w.dir, "br-int.mgmt")
	err := within(time.Minute, func() error {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			return fmt.Errorf("reach br-int: %w\n%s", err, w.running["ovs-vswitchd"].tail())
		}
		return conn.Close()
	})
	if err != nil {
		return err
	}
	c.flows = newMentions()
	cmd := w.ovn("usr/bin/ovs-ofctl", "monitor", "unix:"+socket, "watch:!initial")
	cmd.Stderr = &lines{to: c.flows}
	_, err = w.start("ovs-ofctl", cmd)
	return err
}

// lines passes each line that is written to it to the mentions.
type lines struct {
	to   *mentions
	rest []byte
}

func (l *lines) Write(p []byte) (int, error) {
	l.rest = append(l.rest, p...)
	for {
		line, rest, ok := bytes.Cut(l.rest, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		l.to.hear(line, nil)
		l.rest = rest
	}
}

var _ io.Writer = (*lines)(nil)

// bound waits until the logical ports are up.
func (c *chassis) bound(ctx context.Context, ports map[string]string) error {
	conn, err := jsonrpc.Dial(ctx, c.world.socket("sb"))
	if err != nil {
		return fmt.Errorf("dial the southbound database: %w", err)
	}
	defer conn.Close()
	return within(5*time.Minute, func() error {
		up := map[string]any{"op": "select", "table": "Port_Binding", "where": []any{[]any{"up", "==", true}}, "columns": []string{"logical_port"}}
		var results [1]struct {
			Rows []struct {
				Port string `json:"logical_port"`
			}
		}
		if err := conn.Call("transact", []any{southbound, up}, &results); err != nil {
			return fmt.Errorf("read which ports are up: %w", err)
		}
		missing := len(ports)
		for _, row := range results[0].Rows {
			if _, ours := ports[row.Port]; ours {
				missing--
			}
		}
		if missing > 0 {
			return errors.New("ovn-controller has not bound its ports\n" + c.world.running["ovn-controller"].tail())
		}
		return nil
	})
}
