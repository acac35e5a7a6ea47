// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ovsdb is `kiln ovsdb`: PID 1 of one member of the northbound or southbound Raft cluster. It creates the database file
// as the OVNCluster specifies and runs ovsdb-server. It provides the member's health, leader label and administrative endpoint.
package ovsdb

import (
	"fmt"
	"net/netip"

	"github.com/go-logr/logr"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/podlabel"
	"github.com/kiln-net/kiln/supervisor"
	"github.com/kiln-net/kiln/supervisor/adminapi"
)

// Database is one of OVN's two databases, with its names and ports.
type Database struct {
	// Name in the schema (ovn-nb(5), ovn-sb(5)).
	Name string
	// ServerName is the DNS name in the members' certificates.
	ServerName string
	// Stem is the file name of the database without suffix, and the stem of the socket names: ovnnb_db.
	Stem string
	// Schema is the path of the schema in OVN's packages.
	Schema string
	// Clients are the ports for clients.
	Clients []Listener
	// RaftPort is the port for Raft connections between members.
	RaftPort int
	// AdminPort is the port of the administrative endpoint.
	AdminPort int
	// LeaderLabel is the label of the leader's pod.
	LeaderLabel string
	// Backed is true if members make backups. The southbound database needs none: it is derived from the northbound one.
	Backed bool
	// Of returns this database's part of the status.
	Of func(v1alpha1.OVNClusterStatus) v1alpha1.DatabaseStatus
}

// Listener is one TLS port for clients.
type Listener struct {
	Port int
	// Role limits which rows a client may change, by the chassis in its certificate (ovsdb-server(7), RBAC). Empty means no limit.
	Role string
	// Probe is the inactivity probe in milliseconds: the server sends an echo request after this time without a message, and
	// disconnects the client after the same time without a response. Zero means clientProbe.
	Probe int
}

// northdProbe is Probe of ovn-northd's port, in milliseconds. The active ovn-northd holds a lock in the database until its
// connection ends. When its node fails, the server ends the connection after twice this time, and the standby takes over.
// ovn-northd answers probes between two computations, so the value must exceed the longest computation.
const northdProbe = 10000

// Northbound and Southbound are OVN's databases.
var (
	Northbound = Database{
		Name:        "OVN_Northbound",
		ServerName:  "ovn-nb",
		Stem:        "ovnnb_db",
		Schema:      "/usr/share/ovn/ovn-nb.ovsschema",
		Clients:     []Listener{{Port: 6641}},
		RaftPort:    6643,
		AdminPort:   adminapi.PortNorthbound,
		LeaderLabel: podlabel.NorthboundLeader,
		Backed:      true,
		Of:          func(s v1alpha1.OVNClusterStatus) v1alpha1.DatabaseStatus { return s.Northbound },
	}
	Southbound = Database{
		Name:        "OVN_Southbound",
		ServerName:  "ovn-sb",
		Stem:        "ovnsb_db",
		Schema:      "/usr/share/ovn/ovn-sb.ovsschema",
		Clients:     []Listener{{Port: 6642, Role: "ovn-controller"}, {Port: 6649, Probe: northdProbe}},
		RaftPort:    6644,
		AdminPort:   adminapi.PortSouthbound,
		LeaderLabel: podlabel.SouthboundLeader,
		Of:          func(s v1alpha1.OVNClusterStatus) v1alpha1.DatabaseStatus { return s.Southbound },
	}
)

// ByFlag returns the database that the value of `--db` names.
func ByFlag(name string) (Database, error) {
	switch name {
	case "nb":
		return Northbound, nil
	case "sb":
		return Southbound, nil
	}
	return Database{}, fmt.Errorf("--db is %q; it is nb or sb", name)
}

// Options of one member.
type Options struct {
	Database Database
	// DataDir holds the database file, on the node's disk.
	DataDir string
	// PreviousDataDir is the directory that has the files until the member has moved them to DataDir; empty if there is none.
	PreviousDataDir string
	// RunDir holds sockets: /run/ovn.
	RunDir string
	// TLSDir holds tls.crt, tls.key, ca.crt and admin-ca.crt.
	TLSDir string
	// Node is the name of this member's node and identifies the member.
	Node string
	// Address of this member: the node's address.
	Address netip.Addr
	// Listen is the address of the client ports and of the administrative endpoint; if invalid, all addresses.
	Listen netip.Addr
	// HealthAddress of the probes: 127.0.0.1:6661.
	HealthAddress string
	Programs      Programs
	// Clusters delivers the newest OVNCluster (ovncluster.Watch).
	Clusters <-chan *v1alpha1.OVNCluster
	// Leads receives at each change whether this member is the leader.
	Leads chan<- bool
	// LogLevel is the level of ovsdb-server: warn or more, because the supervisor reads warnings; nil for info.
	LogLevel *supervisor.LogLevel
	Log      logr.Logger
}

// Programs are OVSDB's programs, each with leading arguments if it needs any to run.
type Programs struct {
	Server []string
	Tool   []string
}

// DefaultPrograms are the paths in Debian's packages.
var DefaultPrograms = Programs{Server: []string{"/usr/sbin/ovsdb-server"}, Tool: []string{"/usr/bin/ovsdb-tool"}}
