// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/netip"

	"github.com/kiln-net/kiln/controllers/operator/certs"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/pki"
	"github.com/kiln-net/kiln/internal/supervisor/adminapi"
)

// adminTLS trusts the database's CA and presents the operator's certificate. It verifies members by the name of their
// Service: certificates do not contain addresses.
func adminTLS(p *pass, db render.Database) (*tls.Config, error) {
	return callTLS(p, db.Service, p.serverAuthority(db))
}

// callTLS returns the configuration for a connection to the server with this name.
func callTLS(p *pass, server string, authority *pki.Authority) (*tls.Config, error) {
	kp, err := p.adminCredential()
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

// serverAuthority returns the CA that signs the certificates of the members.
func (p *pass) serverAuthority(db render.Database) *pki.Authority {
	if db.Flag == render.Southbound.Flag {
		return p.authorities[certs.Southbound]
	}
	return p.authorities[certs.Northbound]
}

// ask requests the report of the member at this IP address.
func (r *Reconciler) ask(ctx context.Context, config *tls.Config, db render.Database, address string) (adminapi.Status, error) {
	status, err := r.askAt(ctx, config, address, int(db.AdminPort))
	if err != nil {
		return status, fmt.Errorf("ask a member of the %s: %w", db.Title, err)
	}
	return status, nil
}

func (r *Reconciler) askAt(ctx context.Context, config *tls.Config, address string, port int) (adminapi.Status, error) {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return adminapi.Status{}, fmt.Errorf("parse the address of a pod: %w", err)
	}
	client := r.Admin(netip.AddrPortFrom(ip, uint16(port)), config) //nolint:gosec // a constant, or the port that a member reports for its listener
	defer client.Close()
	return client.Status(ctx)
}
