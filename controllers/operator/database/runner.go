// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package database runs the databases of the OVNCluster: it places their members, executes the membership steps that package raft decides, replaces
// members, converts schemas, records backups, and removes chassis of deleted nodes. It writes what it learns to the record of each database in the
// status.
package database

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/netip"
	"time"

	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/certs"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/controllers/operator/rollout"
	"github.com/kiln-net/kiln/controllers/operator/status"
	"github.com/kiln-net/kiln/controllers/operator/upgrade"
	"github.com/kiln-net/kiln/internal/serving/pki"
	"github.com/kiln-net/kiln/supervisor/adminapi"
)

// Runner runs the databases. It remembers between passes what no object records.
type Runner struct {
	// Admin returns the client of a database member's admin endpoint: adminapi.NewClient.
	Admin func(address netip.AddrPort, config *tls.Config) *adminapi.Client
	// APIReader bypasses the cache.
	APIReader client.Reader
	Recorder  events.EventRecorder
	Versions  *status.Versions
	Replacer  *upgrade.Replacer

	// addressless are nodes without an InternalIP, with the time since when this process has seen that.
	addressless map[string]time.Time
	// converted records, by database flag, the state for which the schema was last verified: database, cluster ID and
	// template.
	converted map[string]string
	// nodesOfChassis are the nodes and pods of nodes for which chassis of deleted nodes were last removed, with the cluster ID.
	nodesOfChassis string
}

// Input is what the databases depend on in one pass.
type Input struct {
	upgrade.Input
	// Upgrade is the input of Plan, which allows replacements of pods.
	Upgrade rollout.Upgrade
	Plan    rollout.Plan
	// Unfit nodes get no member.
	Unfit       []string
	Authorities map[string]*pki.Authority
	Archive     Archive
}

// run is one database in one pass.
type run struct {
	*Runner
	*Input
	db render.Database
	// record is the database's part of the status.
	record *v1alpha1.DatabaseStatus
	// reports of the members that answered, by node.
	reports map[string]adminapi.Status
}

func (r *Runner) of(in *Input, db render.Database) *run {
	return &run{Runner: r, Input: in, db: db, record: db.Of(&in.OVNCluster.Status)}
}

// operatorLifetime is the validity of the operator's certificate for admin endpoints. callTLS issues a new one for each
// use, and does not store it.
const operatorLifetime = time.Hour

// adminTLS trusts the database's CA and presents the operator's certificate. It verifies members by the name of their
// Service: certificates do not contain addresses.
func (p *run) adminTLS() (*tls.Config, error) {
	return p.callTLS(p.db.Service, p.Authorities[certs.ServerAuthority(p.db)])
}

// callTLS returns the configuration for a connection to the server with this name.
func (in *Input) callTLS(server string, authority *pki.Authority) (*tls.Config, error) {
	kp, err := in.Authorities[certs.Admin].Issue(pki.Profile{CommonName: "kiln-operator", Lifetime: operatorLifetime}, in.Report.Now)
	if err != nil {
		return nil, err
	}
	certificate, err := tls.X509KeyPair(kp.Certificate, kp.Key)
	if err != nil {
		return nil, fmt.Errorf("use the operator's certificate: %w", err)
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		ServerName:   server,
		RootCAs:      authority.Pool(),
		Certificates: []tls.Certificate{certificate},
	}, nil
}

// ask requests the report of the member at this IP address.
func (p *run) ask(ctx context.Context, config *tls.Config, address string) (adminapi.Status, error) {
	report, err := p.askAt(ctx, config, address, int(p.db.AdminPort))
	if err != nil {
		return report, fmt.Errorf("ask a member of the %s: %w", p.db.Title, err)
	}
	return report, nil
}

func (r *Runner) askAt(ctx context.Context, config *tls.Config, address string, port int) (adminapi.Status, error) {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return adminapi.Status{}, fmt.Errorf("parse the address of a pod: %w", err)
	}
	client := r.Admin(netip.AddrPortFrom(ip, uint16(port)), config) //nolint:gosec // a constant, or the port that a member reports for its listener
	defer client.Close()
	return client.Status(ctx)
}
