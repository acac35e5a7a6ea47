// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ovsdb is `kiln ovsdb`: PID 1 of one member of the northbound or southbound Raft cluster. It makes the database file as
// the OVNCluster says, runs ovsdb-server, and is the member's face: health, leader label, administrative endpoint.
package ovsdb

import (
	"fmt"
	"net/netip"

	"github.com/go-logr/logr"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/supervisor/adminapi"
	"github.com/kiln-net/kiln/internal/supervisor/podlabel"
)

// Database is one of OVN's two databases, with its names and ports.
type Database struct {
	// Name in the schema (ovn-nb(5), ovn-sb(5)).
	Name string
	// ServerName is the DNS name in the members' certificates.
	ServerName string
	// File name of the database, and the stem of sockets: ovnnb_db.
	Stem string
	// Schema is the path of the schema in OVN's packages.
	Schema string
	// Clients are the ports for clients; those of an RBAC role say which (ovsdb-server(7), RBAC).
	Clients []Listener
	// RaftPort is where members talk to one another.
	RaftPort int
	// AdminPort is the administrative endpoint's.
	AdminPort int
	// LeaderLabel of the pod.
	LeaderLabel string
	// Backed: its members make backups. The southbound database is derived from the northbound one.
	Backed bool
	// Of picks this database out of the status.
	Of func(v1alpha1.OVNClusterStatus) v1alpha1.DatabaseStatus
}

// Listener is one TLS port for clients.
type Listener struct {
	Port int
	// Role limits what clients may change to the rows of the chassis in their certificate; empty means no limit.
	Role string
	// Probe is after how many milliseconds of silence the server asks a client whether it is alive, and after how many more it ends the connection;
	// clientProbe when zero.
	Probe int
}

// northdProbe is Probe of ovn-northd's port, in milliseconds. The active ovn-northd holds a lock in the database until its connection ends. When its
// node is lost, the server ends the connection after twice this time, and the standby starts to work. ovn-northd answers probes between two
// computations, so the value has to exceed the longest computation.
const northdProbe = 10000

// Northbound and Southbound are the databases.
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
		Clients:     []Listener{{Port: 6642, Role: "ovn-controller"}, {Port: 6645, Probe: northdProbe}},
		RaftPort:    6644,
		AdminPort:   adminapi.PortSouthbound,
		LeaderLabel: podlabel.SouthboundLeader,
		Of:          func(s v1alpha1.OVNClusterStatus) v1alpha1.DatabaseStatus { return s.Southbound },
	}
)

// ByFlag returns the database that `--db` names.
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
	// RunDir holds sockets: /run/ovn.
	RunDir string
	// TLSDir holds tls.crt, tls.key, ca.crt and admin-ca.crt.
	TLSDir string
	// Node is this member's node, its identity.
	Node string
	// Address of this member, the node's.
	Address netip.Addr
	// Listen is the address of the ports for clients and of the administrative endpoint; all addresses when not valid.
	Listen netip.Addr
	// HealthAddress of the probes: 127.0.0.1:6661.
	HealthAddress string
	Programs      Programs
	// Clusters gives the newest OVNCluster (ovncluster.Watch).
	Clusters <-chan *v1alpha1.OVNCluster
	// Leads receives whether this member leads, at each change.
	Leads chan<- bool
	Log   logr.Logger
}

// Programs are OVSDB's programs, each with leading arguments if it takes any to run them.
type Programs struct {
	Server []string
	Tool   []string
}

// DefaultPrograms are those of Debian's packages.
var DefaultPrograms = Programs{Server: []string{"/usr/sbin/ovsdb-server"}, Tool: []string{"/usr/bin/ovsdb-tool"}}
