// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kiln-net/kiln/hack/lab/machine"
	"github.com/kiln-net/kiln/hack/lab/topology"
)

const (
	etcdClient = "127.0.0.1:2379"
	etcdPeer   = "http://127.0.0.1:2380"
)

// Programs returns the programs of a node: containerd, kubelet, and kube-proxy if the topology has it. The first node also runs the
// control plane.
func Programs(top topology.Topology, n topology.Node) []machine.Program {
	programs := nodePrograms(top, n)
	if n.Name == top.Nodes()[0].Name {
		programs = append(controlPlanePrograms(top), programs...)
	}
	return programs
}

// SwitchPrograms returns the programs of the switch with VLANs: Open vSwitch with one bridge in userspace, with these ports.
func SwitchPrograms(ports map[string][]string) []machine.Program {
	configure := []string{"ovs-vsctl", "--no-wait", "--if-exists", "del-br", topology.Provider.Name, "--", "add-br", topology.Provider.Name,
		"--", "set", "bridge", topology.Provider.Name, "datapath_type=netdev"}
	for _, port := range slices.Sorted(maps.Keys(ports)) {
		configure = append(append(configure, "--", "add-port", topology.Provider.Name, port), ports[port]...)
	}
	const socket = "/run/openvswitch/db.sock"
	shell := func(name, script string) machine.Program {
		return machine.Program{Name: name, Args: []string{"/bin/sh", "-ec", script}}
	}
	server := shell("ovsdb-server", "mkdir -p /run/openvswitch; rm -f /run/switch.db; ovsdb-tool create /run/switch.db /usr/share/openvswitch/vswitch.ovsschema; "+
		"exec ovsdb-server --remote=punix:"+socket+" /run/switch.db")
	daemon := shell("ovs-vswitchd", strings.Join(configure, " ")+"; exec ovs-vswitchd --pidfile")
	daemon.After = []string{"unix:" + socket}
	return []machine.Program{server, daemon}
}

// RouterPrograms returns the programs of the router: a server of DHCP and router advertisements for each network of the switch. In the one of untagged packets,
// leases and advertisements have the shortest lifetime that dnsmasq permits.
func RouterPrograms() []machine.Program {
	args := []string{"/usr/local/bin/dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--user=root", "--log-facility=-", "--port=0",
		"--dhcp-leasefile=/run/dnsmasq.leases", "--dhcp-authoritative", "--no-ping", "--enable-ra"}
	for _, v := range topology.VLANs {
		first, last := v.Leases()
		lifetime := "1h"
		if v.Tag == 0 {
			lifetime = fmt.Sprintf("%.0f", topology.ShortLease.Seconds())
			args = append(args, fmt.Sprintf("--ra-param=%s,%s,%[2]s", v.Name, lifetime))
		}
		args = append(args, "--interface="+v.Name, fmt.Sprintf("--dhcp-range=%s,%s,%s", first, last, lifetime),
			fmt.Sprintf("--dhcp-range=%s,ra-only,64,%s", v.Prefixes[1].Addr(), lifetime))
	}
	return []machine.Program{{Name: "dnsmasq", Args: args}}
}

// OutsidePrograms returns the programs of the outside hosts: an HTTP server that returns the client's address.
func OutsidePrograms() []machine.Program {
	return []machine.Program{{
		Name: "agnhost",
		Args: []string{"/usr/local/bin/agnhost", "netexec", fmt.Sprintf("--http-port=%d", topology.OutsidePort)},
	}}
}

func nodePrograms(top topology.Topology, n topology.Node) []machine.Program {
	api := "tcp:" + Endpoint(top.APIServer()[0])
	programs := []machine.Program{
		{Name: "containerd", Args: []string{"/usr/bin/containerd", "--config", ContainerdFile}},
		{
			Name:  "kubelet",
			After: []string{"unix:" + ContainerdSocket, api},
			Args: []string{
				"/usr/local/bin/kubelet", "--config=" + KubeletFile, "--kubeconfig=" + Kubelet.ConfigFile(),
				"--hostname-override=" + n.Name, "--node-ip=" + join(n.Addresses()),
			},
		},
	}
	if top.KubeProxy {
		programs = append(programs, machine.Program{
			Name: "kube-proxy", After: []string{api},
			Args: []string{"/usr/local/bin/kube-proxy", "--config=" + KubeProxyFile},
		})
	}
	return programs
}

func controlPlanePrograms(top topology.Topology) []machine.Program {
	api := "tcp:" + Endpoint(top.APIServer()[0])
	return []machine.Program{
		{Name: "etcd", Args: []string{
			"/usr/local/bin/etcd", "--name=etcd", "--data-dir=/var/lib/etcd", "--unsafe-no-fsync",
			"--listen-client-urls=http://" + etcdClient, "--advertise-client-urls=http://" + etcdClient,
			"--listen-peer-urls=" + etcdPeer, "--initial-advertise-peer-urls=" + etcdPeer, "--initial-cluster=etcd=" + etcdPeer,
		}},
		{Name: "kube-apiserver", After: []string{"tcp:" + etcdClient}, Args: apiServerArgs(top)},
		{Name: "kube-controller-manager", After: []string{api}, Args: []string{
			"/usr/local/bin/kube-controller-manager", "--leader-elect=false", "--allocate-node-cidrs=false",
			"--kubeconfig=" + ControllerManager.ConfigFile(), "--authentication-kubeconfig=" + ControllerManager.ConfigFile(),
			"--authorization-kubeconfig=" + ControllerManager.ConfigFile(), "--use-service-account-credentials",
			"--service-cluster-ip-range=" + join(top.ServiceCIDRs()),
			"--root-ca-file=" + PKIDir + "/ca.crt", "--service-account-private-key-file=" + PKIDir + "/sa.key",
			"--cluster-signing-cert-file=" + PKIDir + "/ca.crt", "--cluster-signing-key-file=" + PKIDir + "/ca.key",
		}},
		{Name: "kube-scheduler", After: []string{api}, Args: []string{
			"/usr/local/bin/kube-scheduler", "--leader-elect=false", "--kubeconfig=" + Scheduler.ConfigFile(),
			"--authentication-kubeconfig=" + Scheduler.ConfigFile(), "--authorization-kubeconfig=" + Scheduler.ConfigFile(),
		}},
	}
}

func apiServerArgs(top topology.Topology) []string {
	return []string{
		"/usr/local/bin/kube-apiserver",
		"--etcd-servers=http://" + etcdClient,
		"--bind-address=::", fmt.Sprintf("--secure-port=%d", topology.APIServerPort),
		"--advertise-address=" + top.APIServer()[0].String(),
		"--service-cluster-ip-range=" + join(top.ServiceCIDRs()),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
		"--tls-cert-file=" + PKIDir + "/apiserver.crt", "--tls-private-key-file=" + PKIDir + "/apiserver.key",
		"--client-ca-file=" + PKIDir + "/ca.crt",
		"--kubelet-certificate-authority=" + PKIDir + "/ca.crt", "--kubelet-preferred-address-types=InternalIP",
		"--kubelet-client-certificate=" + PKIDir + "/apiserver-kubelet-client.crt",
		"--kubelet-client-key=" + PKIDir + "/apiserver-kubelet-client.key",
		"--service-account-issuer=" + serviceIssuer, "--service-account-key-file=" + PKIDir + "/sa.crt",
		"--service-account-signing-key-file=" + PKIDir + "/sa.key",
		"--requestheader-client-ca-file=" + PKIDir + "/front-proxy-ca.crt", "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-username-headers=X-Remote-User",
		"--proxy-client-cert-file=" + PKIDir + "/front-proxy-client.crt",
		"--proxy-client-key-file=" + PKIDir + "/front-proxy-client.key",
	}
}
