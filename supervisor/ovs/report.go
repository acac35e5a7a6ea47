// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"slices"
	"time"

	"github.com/kiln-net/kiln/internal/node/nodehealth"
	"github.com/kiln-net/kiln/internal/ovsdb/vswitch"
	"github.com/kiln-net/kiln/supervisor"
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
	interfaces, err := n.logicalInterfaces(ctx)
	if err != nil {
		r.OpenVSwitch = err.Error()
		return r
	}
	ports := slices.DeleteFunc(slices.Clone(interfaces), func(i vswitch.Interface) bool { return !isPort(&i) })
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
	r.Portless = portless(interfaces)
	return r
}

// portless returns the host's ends of veths to containers that are no interfaces of Open vSwitch.
func portless(interfaces []vswitch.Interface) (names []string) {
	links, err := net.Interfaces()
	if err != nil {
		return nil
	}
	for _, link := range links {
		if nodehealth.IsPodLink(link.Name) && !slices.ContainsFunc(interfaces, func(i vswitch.Interface) bool { return i.Name == link.Name }) {
			names = append(names, link.Name)
		}
	}
	slices.Sort(names)
	return names
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

// logicalInterfaces returns the interfaces of the node that name a logical port. It fails if the database does not answer: the connection alone does not show that.
func (n *node) logicalInterfaces(ctx context.Context) ([]vswitch.Interface, error) {
	db := n.db.Load()
	if db == nil || !db.Connected() {
		return nil, errors.New("not connected to the Open vSwitch database")
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	if err := db.Echo(ctx); err != nil {
		return nil, fmt.Errorf("the Open vSwitch database does not answer: %w", err)
	}
	var interfaces []vswitch.Interface
	isLogical := func(i *vswitch.Interface) bool { return i.ExternalIDs["iface-id"] != "" }
	if err := db.WhereCache(isLogical).List(ctx, &interfaces); err != nil {
		return nil, fmt.Errorf("read the ports in the Open vSwitch database: %w", err)
	}
	return interfaces, nil
}

// isPort reports whether ovn-controller binds the interface of a logical port: it has a device (ovn-controller(8), ovs-vswitchd.conf.db(5)).
// The device of a pod that ends disappears before its interface.
func isPort(i *vswitch.Interface) bool {
	return i.Ofport != nil && *i.Ofport > 0
}
