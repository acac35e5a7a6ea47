// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package adminapi is the administrative endpoint of a database member: what `kiln ovsdb` serves and the operator calls. It
// exists because Raft membership is reachable through the member's own control socket only (ovsdb-server(1), cluster/*
// commands).
package adminapi

import (
	"context"
	"io"
	"time"

	"github.com/kiln-net/kiln/internal/version"
)

// Ports of the endpoint. Probes for the kubelet are HealthOffset above, on the loopback address, without TLS.
const (
	PortNorthbound = 6651
	PortSouthbound = 6652
	// PortArchive is that of the process which keeps backups on a PersistentVolumeClaim (Archive).
	PortArchive  = 6654
	HealthOffset = 10
)

// Roles of a member (ovsdb(7), clustered database service model).
const (
	RoleLeader    = "leader"
	RoleFollower  = "follower"
	RoleCandidate = "candidate"
)

// Status is one member's view of its Raft cluster.
type Status struct {
	// Waiting is why the server has not been started; everything but DiskFailure, NeedsRejoin, MovedClusterID and Backups is empty then.
	Waiting string `json:"waiting,omitempty"`
	// DiskFailure is why the server cannot be started: its file cannot be written.
	DiskFailure string `json:"diskFailure,omitempty"`
	// NeedsRejoin: what is recorded of this member, it does not hold any more. It waits to be kicked and told to join anew.
	NeedsRejoin bool `json:"needsRejoin,omitempty"`
	// MovedClusterID is the cluster of the member's file, if the file is intact and does not serve because the node has another address now. A
	// recovery can read it.
	MovedClusterID string `json:"movedClusterID,omitempty"`
	// ClusterID is the UUID of the cluster; empty while the member does not know it yet.
	ClusterID string `json:"clusterID"`
	// ServerID is the UUID of this member.
	ServerID string `json:"serverID"`
	// Address of this member as Raft knows it: ssl:192.0.2.1:6643.
	Address string `json:"address"`
	// Role is leader, follower or candidate.
	Role string `json:"role"`
	Term int64  `json:"term"`
	// LastIndex of the member's log: of two members of one cluster, that with the higher one has more.
	LastIndex int64 `json:"lastIndex"`
	// Since is the record by which the member began (DatabaseMember.since); zero for the first member of the first cluster.
	Since time.Time `json:"since"`
	// Leader is the leader's server ID as members show one another: its first four hexadecimal digits. Empty when there is none.
	Leader string `json:"leader"`
	// LeaderAddress is the leader's address, in the form of Address.
	LeaderAddress string `json:"leaderAddress"`
	// Connected: the member is part of the cluster and knows a leader, so that it serves.
	Connected bool     `json:"connected"`
	Members   []Member `json:"members"`
	// Versions of what the member runs.
	Versions version.Programs `json:"versions"`
	// Backups on the member's node, the newest first.
	Backups []Backup `json:"backups,omitempty"`
	// BackupFailure is why the last backup was not made.
	BackupFailure string `json:"backupFailure,omitempty"`
}

// Backup is one verified backup.
type Backup struct {
	// Name of the file, in the directory of backups.
	Name string    `json:"name"`
	Time time.Time `json:"time"`
	Rows int64     `json:"rows"`
	// Request by which it was asked for.
	Request string `json:"request,omitempty"`
}

// Member is one member of the cluster, this one included.
type Member struct {
	// ServerID is the first four hexadecimal digits of the server ID; Kick takes them.
	ServerID string `json:"serverID"`
	Address  string `json:"address"`
}

// Database is what the endpoint administers: one member of one database.
type Database interface {
	// Status asks the member itself.
	Status(ctx context.Context) (Status, error)
	// Kick removes another member from the cluster, by server ID (four digits or more) or address. It returns once the removal
	// has begun. A server that is not a member, or the member itself, is an error.
	Kick(ctx context.Context, server string) error
	// Leave takes this member out of the cluster for good. It returns once that has begun. It is done when other members do not
	// list this one any more; this one's own Status is an error then.
	Leave(ctx context.Context) error
	// Compact shortens the database's log.
	Compact(ctx context.Context) error
	// Schemas asks which schema the database has, and which one the member's image brings.
	Schemas(ctx context.Context) (Schemas, error)
	// Convert gives the database the schema of the member's image. The leader does it, when all members run that image.
	Convert(ctx context.Context) error
}

// ArchiveName is the DNS name in an archive's certificate.
const ArchiveName = "ovn-nb-backups"

// Archive are the backups on a PersistentVolumeClaim.
type Archive interface {
	// Status has Versions, Backups and BackupFailure only.
	Status(ctx context.Context) (Status, error)
	// Open opens a backup by its name. One that is not there is fs.ErrNotExist.
	Open(name string) (io.ReadCloser, error)
}

// Schemas are versions, `x.y.z`.
type Schemas struct {
	Database string `json:"database"`
	Image    string `json:"image"`
}
