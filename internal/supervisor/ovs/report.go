// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"time"

	"github.com/kiln-net/kiln/internal/nodehealth"
	"github.com/kiln-net/kiln/internal/ovsdb/vswitch"
	"github.com/kiln-net/kiln/internal/supervisor"
)

// answerTimeout bounds the answer of one daemon, so that a stopped daemon does not make the others look stopped.
const answerTimeout = 2 * time.Second

// reports returns the handler of nodehealth.Path.
func (n *node) reports() http.Handler { return nodehealth.Handler(n.report) }

// report returns the state of the daemons and of the node's ports. Unlike ready it does not end at the first fault, so that the faults of
// different daemons are distinct.
func (n *node) report(ctx context.Context) nodehealth.Report {
	var r nodehealth.Report
	if _, err := answer(ctx, n.vswitch, "version"); err != nil {
		r.OpenVSwitch = err.Error()
	}
	switch status, err := answer(ctx, n.controller, "connection-status"); {
	case err != nil:
		r.OVNController = err.Error()
	case status != "connected":
		r.Southbound = "ovn-controller is " + status
	}
	ports, err := n.ports(ctx)
	if err != nil {
		r.OpenVSwitch = err.Error()
		return r
	}
	r.Ports = len(ports)
	bindings, bindingsErr := answer(ctx, n.controller, "debug/dump-local-bindings")
	bound := boundPorts(bindings)
	for i := range ports {
		ids := ports[i].ExternalIDs
		// ovn-controller does not remove ovn-installed when the logical port is deleted.
		if ids["ovn-installed"] != "true" || bindingsErr == nil && !bound[ids["iface-id"]] {
			r.Unbound = append(r.Unbound, ports[i].UUID)
		}
	}
	slices.Sort(r.Unbound)
	return r
}

// localBinding is a line of `debug/dump-local-bindings` of ovn-controller.
var localBinding = regexp.MustCompile(`(?m)^name: \[(.*)\], OVS interface name : \[.*\], num binding lports : \[(\d+)\]$`)

// boundPorts returns the names of the logical ports that ovn-controller has bound, from the output of `debug/dump-local-bindings`.
func boundPorts(output string) map[string]bool {
	bound := map[string]bool{}
	for _, m := range localBinding.FindAllStringSubmatch(output, -1) {
		bound[m[1]] = m[2] != "0"
	}
	return bound
}

// answer returns the output of a command on the control socket of a daemon.
func answer(ctx context.Context, daemon *supervisor.Keeper, command string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	return daemon.Call(ctx, command)
}

// ports returns OVN's ports on the node. It fails if the database does not answer: the connection alone does not show that.
func (n *node) ports(ctx context.Context) ([]vswitch.Interface, error) {
	db := n.db.Load()
	if db == nil || !db.Connected() {
		return nil, errors.New("not connected to the Open vSwitch database")
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	if err := db.Echo(ctx); err != nil {
		return nil, fmt.Errorf("the Open vSwitch database does not answer: %w", err)
	}
	var ports []vswitch.Interface
	if err := db.WhereCache(isPort).List(ctx, &ports); err != nil {
		return nil, fmt.Errorf("read the ports in the Open vSwitch database: %w", err)
	}
	return ports, nil
}

// isPort reports whether ovn-controller binds the interface: it names a logical port, and has a device (ovn-controller(8), ovs-vswitchd.conf.db(5)).
// The device of a pod that ends disappears before its interface.
func isPort(i *vswitch.Interface) bool {
	return i.ExternalIDs["iface-id"] != "" && i.Ofport != nil && *i.Ofport > 0
}
