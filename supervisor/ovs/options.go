// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ovs is `kiln ovs`: it runs Open vSwitch and ovn-controller on a node, and configures them as the OVNCluster says. internal/node/bridges moves interfaces of the node
// to bridges.
package ovs

import (
	"net/http"
	"net/netip"
	"path/filepath"

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/client-go/kubernetes/typed/certificates/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/node/bridges"
	"github.com/kiln-net/kiln/supervisor"
)

// Options of `kiln ovs`.
type Options struct {
	Datapath v1alpha1.Datapath
	// TunnelInterface carries the tunnels; if empty, the interface that has NodeAddress does.
	TunnelInterface string
	// TunnelTypes are the encapsulations that the node offers. With each other node ovn-controller uses the best one that both offer.
	TunnelTypes []v1alpha1.TunnelType
	// Node is the name of the node and of its chassis.
	Node string
	// NodeAddress is the node's InternalIP, an address of one of its interfaces.
	NodeAddress string
	// TrustDir holds sb-server.crt, the CA of the southbound database, and sb-client.crt, the CA of chassis certificates. The second is
	// optional.
	TrustDir string
	// RunDir is Open vSwitch's runtime directory: /run/openvswitch. OVNRunDir is OVN's: /run/ovn. ConfigDir holds conf.db and the
	// chassis' certificate: /etc/openvswitch.
	RunDir, OVNRunDir, ConfigDir string
	// HealthAddress of the probes and of metrics.
	HealthAddress string
	// Access limits who may read metrics (scrape.Access.Handler); nil for no limit.
	Access   func(metrics http.Handler) http.Handler
	Programs Programs
	// Clusters delivers the newest OVNCluster (ovncluster.Watch).
	Clusters <-chan *v1alpha1.OVNCluster
	// Requests creates and watches CertificateSigningRequests.
	Requests certificatesv1.CertificateSigningRequestInterface
	// APIServer is the address of the API server; invalid if it is a name. A move that cuts it off is undone.
	APIServer netip.AddrPort
	// LogLevel is the level of ovs-vswitchd and ovsdb-server, ControllerLogLevel that of ovn-controller; nil for info.
	LogLevel, ControllerLogLevel *supervisor.LogLevel
	Log                          logr.Logger

	// Sysctls is a writable /proc/sys/net; empty for that directory itself.
	Sysctls string
}

// bridges returns the options of the mover of interfaces.
func (o Options) bridges() bridges.Options {
	return bridges.Options{
		Datapath: o.Datapath, TunnelInterface: o.TunnelInterface, Node: o.Node, NodeAddress: o.NodeAddress, RunDir: o.RunDir, APIServer: o.APIServer,
		Sysctls: o.Sysctls, Log: o.Log,
	}
}

// Programs of Open vSwitch and OVN, each with leading arguments if it needs any to run.
type Programs struct {
	Tool, Server, Switch, Controller, OpenFlow []string
	// Schema is the file with the schema of the Open vSwitch database.
	Schema string
}

// DefaultPrograms are the paths in Debian's packages.
var DefaultPrograms = Programs{
	Tool:       []string{"/usr/bin/ovsdb-tool"},
	Server:     []string{"/usr/sbin/ovsdb-server"},
	Switch:     []string{"/usr/sbin/ovs-vswitchd"},
	Controller: []string{"/usr/bin/ovn-controller"},
	OpenFlow:   []string{"/usr/bin/ovs-ofctl"},
	Schema:     "/usr/share/openvswitch/vswitch.ovsschema",
}

func (o Options) database() string     { return filepath.Join(o.ConfigDir, "conf.db") }
func (o Options) socket() string       { return filepath.Join(o.RunDir, "db.sock") }
func (o Options) certificates() string { return filepath.Join(o.ConfigDir, "kiln") }
