// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package adminapi is the administrative endpoint of a database member, served by `kiln ovsdb` and called by the operator. It
// exists because Raft membership commands (cluster/*, ovsdb-server(1)) work only through the member's own control socket.
package adminapi

import (
	"context"
	"io"
	"time"

	"github.com/kiln-net/kiln/internal/version"
)

// Ports of the endpoint. The kubelet's probes use the port plus HealthOffset, on the loopback address and without TLS.
const (
	PortNorthbound = 6651
	PortSouthbound = 6652
	// PortArchive is the port of the archive process, which keeps backups on a PersistentVolumeClaim (Archive).
	PortArchive = 6654
	// PortNorthd is the port at which `kiln northd` serves metrics to kube-ovn-monitor.
	PortNorthd   = 6655
	HealthOffset = 10
)

// MonitorName is the common name in kube-ovn-monitor's certificate. Its CA is the operator's, and this name gives access to metrics only.
const MonitorName = "kube-ovn-monitor"

// Names of the servers in the certificates of members and of ovn-northd.
const (
	NorthboundName = "ovn-nb"
	SouthboundName = "ovn-sb"
	NorthdName     = "ovn-northd"
)

// MetricsPath is the HTTP path of metrics.
const MetricsPath = "/metrics"

// Roles of a member (ovsdb(7), clustered database service model).
const (
	RoleLeader    = "leader"
	RoleFollower  = "follower"
	RoleCandidate = "candidate"
)

// Status is one member's view of its Raft cluster.
type Status struct {
	// Waiting is why the server has not been started. Only DiskFailure, Unguarded, NeedsRejoin, MovedClusterID and Backups are set besides it.
	Waiting string `json:"waiting,omitempty"`
	// Unguarded is why nftables of the member's node cannot limit the access to its ports. A member that has not been started waits for it.
	Unguarded string `json:"unguarded,omitempty"`
	// DiskFailure is why the server cannot be started: its file is not writable.
	DiskFailure string `json:"diskFailure,omitempty"`
	// NeedsRejoin is set when the member's data no longer matches its record. The member waits to be kicked and added again.
	NeedsRejoin bool `json:"needsRejoin,omitempty"`
	// MovedClusterID is the cluster ID of an intact file that the member cannot serve because the node's address changed. A recovery
	// can read the file.
	MovedClusterID string `json:"movedClusterID,omitempty"`
	// ClusterID is the UUID of the cluster; empty until the member has learned it.
	ClusterID string `json:"clusterID"`
	// ServerID is the UUID of this member.
	ServerID string `json:"serverID"`
	// Address of this member in Raft: ssl:192.0.2.1:6643.
	Address string `json:"address"`
	// Role is leader, follower or candidate.
	Role string `json:"role"`
	Term int64  `json:"term"`
	// LastIndex is the index of the last entry in the member's log. Of two members of one cluster, the higher value has more data.
	LastIndex int64 `json:"lastIndex"`
	// Since identifies the record with which the member joined (DatabaseMember.since); zero for the first member of the first
	// cluster.
	Since time.Time `json:"since"`
	// Leader is the abbreviated server ID of the leader: its first four hexadecimal digits. Empty when there is none.
	Leader string `json:"leader"`
	// LeaderAddress is the leader's address, in the form of Address.
	LeaderAddress string `json:"leaderAddress"`
	// Connected is true when the member is part of the cluster and knows a leader, so that it can serve.
	Connected bool     `json:"connected"`
	Members   []Member `json:"members"`
	// Versions of the programs that the member runs.
	Versions version.Programs `json:"versions"`
	// Backups on the member's node, newest first.
	Backups []Backup `json:"backups,omitempty"`
	// BackupFailure is why the last attempt to make a backup, or to delete old ones after it, failed.
	BackupFailure string `json:"backupFailure,omitempty"`
}

// Backup is one verified backup.
type Backup struct {
	// Name of the file, in the directory of backups.
	Name string    `json:"name"`
	Time time.Time `json:"time"`
	Rows int64     `json:"rows"`
	// Request is the backup request that this backup answers, if any.
	Request string `json:"request,omitempty"`
}

// Member is one member of the cluster, this one included.
type Member struct {
	// ServerID is the first four hexadecimal digits of the server ID; Kick accepts them.
	ServerID string `json:"serverID"`
	Address  string `json:"address"`
}

// Database is the interface that the endpoint serves: one member of one database.
type Database interface {
	// Status queries the member.
	Status(ctx context.Context) (Status, error)
	// Kick removes another member from the cluster, by server ID (four digits or more) or address. It returns once the removal has
	// begun. It returns an error for an unknown server and for the member itself.
	Kick(ctx context.Context, server string) error
	// Leave removes this member from the cluster permanently. It returns once the removal has begun. The removal is complete when
	// other members no longer list this one; this member's own Status then returns an error.
	Leave(ctx context.Context) error
	// Compact compacts the database's log.
	Compact(ctx context.Context) error
	// Schemas returns the schema version of the database and of the member's image.
	Schemas(ctx context.Context) (Schemas, error)
	// BeyondVXLAN counts the rows of the southbound database that tunnels of type vxlan cannot carry.
	BeyondVXLAN(ctx context.Context) (BeyondVXLAN, error)
	// Convert converts the database to the schema of the member's image. It is called on the leader once all members run that image.
	Convert(ctx context.Context) error
	// Chassis returns the names of the chassis that nodes have registered in the southbound database.
	Chassis(ctx context.Context) ([]string, error)
	// RemoveChassis removes chassis of nodes with their encapsulations. It ignores names that no such chassis has. The ovn-controller of a
	// removed chassis, if it runs, registers it again.
	RemoveChassis(ctx context.Context, names []string) error
}

// ArchiveName is the DNS name in an archive's certificate.
const ArchiveName = "ovn-nb-backups"

// Archive serves the backups on a PersistentVolumeClaim.
type Archive interface {
	// Status sets only Versions, Backups and BackupFailure.
	Status(ctx context.Context) (Status, error)
	// Open opens a backup by its name. It returns fs.ErrNotExist for an unknown name.
	Open(name string) (io.ReadCloser, error)
}

// Limits of tunnel keys with VXLAN, whose header has 24 bits for both of them (ovn-architecture(7), Tunnel Encapsulations). The upper half
// of the keys of ports is for multicast groups.
const (
	MaxVXLANDatapath = 4095
	MaxVXLANPort     = 2047
)

// BeyondVXLAN has the numbers of logical switches and routers, and of their ports, whose tunnel keys are above the limits of VXLAN.
type BeyondVXLAN struct {
	Datapaths int `json:"datapaths"`
	Ports     int `json:"ports"`
}

// Schemas holds schema versions, `x.y.z`.
type Schemas struct {
	Database string `json:"database"`
	Image    string `json:"image"`
}
