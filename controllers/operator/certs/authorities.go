// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package certs has the certificates that the operator issues: the catalogue of CAs and of the workloads' certificates, their Secrets, the
// Certificates that cert-manager is asked for, and the signer of the nodes' own certificates.
package certs

import (
	"slices"

	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/serving/pki"
	"github.com/kiln-net/kiln/supervisor/adminapi"
)

// Names of the CAs. ovsdb-server checks only the CA of a client's certificate, so each role has its own CA.
const (
	Northbound       = "nb-server"
	Southbound       = "sb-server"
	NorthboundClient = "nb-client"
	Chassis          = "sb-client"
	Northd           = "northd"
	Admin            = "admin"
)

// Authorities are the names of all CAs.
var Authorities = []string{
	Northbound, Southbound, NorthboundClient, Chassis, Northd, Admin,
}

// SecretPrefix plus the name of a CA is the name of its Secret. Only the operator reads these Secrets.
const SecretPrefix = "kiln-ca-"

// AdminTrustFile has the CA bundle of a member's admin endpoint.
const AdminTrustFile = "admin-ca.crt"

// ChassisTrustFile is the file next to render.TrustFile with the CA of the nodes' own certificates.
const ChassisTrustFile = "sb-client.crt"

// Credential describes the Secret of one workload.
type Credential struct {
	Secret    string
	Component string
	Authority string
	Profile   pki.Profile
	// Trust lists, per file, the CAs that the workload trusts.
	Trust map[string][]string
}

// Credentials are those of the workloads that always run.
var Credentials = []Credential{
	{
		Secret: render.Northbound.Secret, Component: render.NorthboundName, Authority: Northbound,
		Profile: pki.Profile{CommonName: render.Northbound.Service, DNSNames: []string{render.Northbound.Service}, Server: true},
		Trust: map[string][]string{
			pki.TrustKey:   {Northbound, NorthboundClient, Northd},
			AdminTrustFile: {Admin},
		},
	},
	{
		Secret: render.Southbound.Secret, Component: render.SouthboundName, Authority: Southbound,
		Profile: pki.Profile{CommonName: render.Southbound.Service, DNSNames: []string{render.Southbound.Service}, Server: true},
		Trust: map[string][]string{
			pki.TrustKey:   {Southbound, Chassis, Northd},
			AdminTrustFile: {Admin},
		},
	},
	{
		Secret: render.NorthdSecret, Component: render.NorthdName, Authority: Northd,
		Profile: pki.Profile{CommonName: adminapi.NorthdName, DNSNames: []string{adminapi.NorthdName}, Server: true}, // a server of metrics
		Trust: map[string][]string{
			pki.TrustKey:   {Northbound, Southbound},
			AdminTrustFile: {Admin},
		},
	},
	{
		Secret: render.ControllerSecret, Component: render.ControllerName, Authority: NorthboundClient,
		Profile: pki.Profile{CommonName: render.ControllerName},
		Trust:   map[string][]string{pki.TrustKey: {Northbound}},
	},
}

// Backups exists only while the spec names a claim for backups. Its CA is the controller's: both connect to the
// northbound database as clients.
var Backups = Credential{
	Secret: render.BackupsSecret, Component: render.BackupsName, Authority: NorthboundClient,
	Profile: pki.Profile{CommonName: adminapi.ArchiveName, DNSNames: []string{adminapi.ArchiveName}, Server: true},
	Trust: map[string][]string{
		pki.TrustKey:   {Northbound},
		AdminTrustFile: {Admin, Northbound}, // clients: the operator, and members that a recovery re-creates
	},
}

// Monitor exists only while the spec enables kube-ovn-monitor. Its CA is the operator's, and its name gives access to metrics only
// (adminapi.MonitorName).
var Monitor = Credential{
	Secret: render.MonitorSecret, Component: render.MonitorName, Authority: Admin,
	Profile: pki.Profile{CommonName: adminapi.MonitorName},
	Trust:   map[string][]string{pki.TrustKey: {Northbound, Southbound, Northd}},
}

// ServerAuthority returns the CA that signs the certificates of a database's members.
func ServerAuthority(db render.Database) string {
	i := slices.IndexFunc(Credentials, func(c Credential) bool { return c.Secret == db.Secret })
	return Credentials[i].Authority
}

// IssuedPrefix plus the name of a CA is the name of its Certificate and of the Secret that cert-manager creates for it.
const IssuedPrefix = "kiln-issued-"

// SecretNames returns the names of all Secrets that the operator reads and writes.
func SecretNames() []string {
	names := []string{Backups.Secret, Monitor.Secret}
	for _, c := range Credentials {
		names = append(names, c.Secret)
	}
	for _, name := range Authorities {
		names = append(names, SecretPrefix+name, IssuedPrefix+name)
	}
	return names
}
