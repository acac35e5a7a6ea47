// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package envcheck

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Subjects of several functions.
const (
	subjectModules = "Kernel modules"
	subjectPorts   = "Ports of nodes"
	subjectMTU     = "MTU of nodes"
)

// kernelDevices are devices that exist only while the kernel has a module, also if it is built in.
var kernelDevices = map[string][]string{
	"openvswitch": {"ovs-system"}, "geneve": {"genev_sys_6081"}, "vxlan": {"vxlan_sys_4789"},
}

// modules checks that the kernel has the modules, or can load them: it does at their first use.
func (n node) modules(s NodeSettings) []Finding {
	release := n.read("proc/sys/kernel/osrelease")
	available := n.availableModules(release)
	var missing, unloaded, unknown []string
	for _, name := range s.Modules {
		switch {
		case n.hasModule(name):
		case available == nil:
			unknown = append(unknown, name)
		case available[name]:
			unloaded = append(unloaded, name)
		default:
			missing = append(missing, name)
		}
	}
	var found []Finding
	locked := n.read("proc/sys/kernel/modules_disabled") == "1"
	if len(missing) > 0 {
		found = append(found, Finding{Failed, subjectModules, fmt.Sprintf("kernel %s has no %s: install them%s", release, strings.Join(missing, ", "), insteadOf(missing))})
	}
	switch {
	case len(unloaded) > 0 && locked:
		found = append(found, Finding{Failed, subjectModules, fmt.Sprintf("%s are not loaded, and kernel.modules_disabled is 1: load them at boot, by a file in /etc/modules-load.d", strings.Join(unloaded, ", "))})
	case len(unloaded) > 0:
		found = append(found, Finding{OK, subjectModules, fmt.Sprintf("the kernel loads %s at the first use", strings.Join(unloaded, ", "))})
	}
	if len(unknown) > 0 {
		found = append(found, Finding{Warning, subjectModules, fmt.Sprintf("%s are not loaded, and /lib/modules/%s cannot be read: run `modprobe -a %s`%s",
			strings.Join(unknown, ", "), release, strings.Join(unknown, " "), insteadOf(unknown))})
	}
	if len(found) == 0 {
		found = []Finding{{OK, subjectModules, strings.Join(s.Modules, ", ") + " are loaded"}}
	}
	return found
}

// insteadOf names the datapath that needs no openvswitch.
func insteadOf(modules []string) string {
	if slices.Contains(modules, "openvswitch") {
		return ", or use nodes.datapath Userspace"
	}
	return ""
}

// hasModule reports whether a module is loaded, or built into the kernel with a trace of it.
func (n node) hasModule(name string) bool {
	for line := range strings.Lines(n.read("proc/modules")) {
		if first, _, _ := strings.Cut(line, " "); first == name {
			return true
		}
	}
	return n.exists("sys/module/"+name) || slices.ContainsFunc(kernelDevices[name], func(d string) bool { return n.exists("sys/class/net/" + d) })
}

// availableModules returns the modules that are built into the kernel or can be loaded; nil if that cannot be read (modules.dep, modules.builtin: depmod(8)).
func (n node) availableModules(release string) map[string]bool {
	var all map[string]bool
	for _, list := range []string{"modules.dep", "modules.builtin"} {
		for line := range strings.Lines(n.read(path.Join(ModulesDirectory, release, list))) {
			file, _, _ := strings.Cut(strings.TrimSpace(line), ":")
			name, _, _ := strings.Cut(path.Base(file), ".ko")
			if all == nil {
				all = map[string]bool{}
			}
			all[strings.ReplaceAll(name, "-", "_")] = true
		}
	}
	return all
}

// parameter returns a kernel parameter; "" if it does not exist.
func (n node) parameter(key string) string { return n.read("proc/sys/" + key) }

// leastConnections is the number of connections that the agent makes the kernel track at least (agent/host).
const leastConnections = 131072

// parameters checks kernel parameters. The agent sets them when it starts, so that without it only those count that it cannot set.
func (n node) parameters(s NodeSettings) []Finding {
	const subject = "Kernel parameters"
	var found []Finding
	fail := func(level Level, format string, args ...any) {
		found = append(found, Finding{level, subject, fmt.Sprintf(format, args...)})
	}
	if s.IPv6 && !n.exists("proc/sys/net/ipv6/conf/all") {
		fail(Failed, "the kernel has no IPv6, and network.podCIDRs has a CIDR of it: remove ipv6.disable=1 from the kernel's command line")
	}
	for _, device := range n.ignoredRouters() {
		fail(Warning, "%s has an IPv6 default route of a router advertisement, and ignores further ones, because it forwards: set net.ipv6.conf.%s.accept_ra=2", device, device)
	}
	if s.Installed {
		const again = "the agent had set it, so another program changes it: see /etc/sysctl.d"
		if n.parameter("net/ipv4/ip_forward") == "0" {
			fail(Failed, "net.ipv4.ip_forward is 0: set it to 1; %s", again)
		}
		if s.IPv6 && n.parameter("net/ipv6/conf/all/forwarding") == "0" {
			fail(Failed, "net.ipv6.conf.all.forwarding is 0: set it to 1; %s", again)
		}
		// The kernel uses the larger value of an interface's and of "all" (ip-sysctl).
		if own := n.parameter("net/ipv4/conf/ovn0/rp_filter"); own == "1" || own == "0" && n.parameter("net/ipv4/conf/all/rp_filter") == "1" {
			fail(Failed, "net.ipv4.conf.ovn0.rp_filter is strict: set it to 2; %s", again)
		}
		if have, err := strconv.Atoi(n.parameter("net/netfilter/nf_conntrack_max")); err == nil && have < leastConnections {
			fail(Warning, "net.netfilter.nf_conntrack_max is %d, and the agent could not raise it: set it to %d or more, on the host of a node that is a container", have, leastConnections)
		}
	}
	if len(found) == 0 {
		return []Finding{{OK, subject, "none prevents that the agent forwards packets"}}
	}
	return found
}

// Flags of a route in /proc/net/ipv6_route (linux/ipv6_route.h).
const (
	routeDefault = 0x00010000
	routeOfRA    = 0x00040000
)

// ignoredRouters returns interfaces with a default route of a router advertisement that ignore advertisements: a host that forwards does unless accept_ra is 2
// (ip-sysctl). The route then expires.
func (n node) ignoredRouters() (devices []string) {
	for line := range strings.Lines(n.read("proc/net/ipv6_route")) {
		fields := strings.Fields(line)
		if len(fields) != 10 || !fs.ValidPath(fields[9]) {
			continue
		}
		flags, err := strconv.ParseUint(fields[8], 16, 64)
		device := fields[9]
		conf := "net/ipv6/conf/" + device
		if err == nil && flags&routeDefault != 0 && flags&routeOfRA != 0 && n.parameter(conf+"/forwarding") == "1" && n.parameter(conf+"/accept_ra") == "1" && !slices.Contains(devices, device) {
			devices = append(devices, device)
		}
	}
	return devices
}
