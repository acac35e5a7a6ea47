// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/pki"
	"github.com/kiln-net/kiln/internal/supervisor/adminapi"
)

// Names of the CAs. ovsdb-server checks only the CA of a client's certificate, so each role has its own CA.
const (
	authorityNorthbound       = "nb-server"
	authoritySouthbound       = "sb-server"
	authorityNorthboundClient = "nb-client"
	authorityChassis          = "sb-client"
	authorityNorthd           = "northd"
	authorityAdmin            = "admin"
)

var authorities = []string{
	authorityNorthbound, authoritySouthbound, authorityNorthboundClient, authorityChassis, authorityNorthd, authorityAdmin,
}

// authoritySecretPrefix plus the name of a CA is the name of its Secret. Only the operator reads these Secrets.
const authoritySecretPrefix = "kiln-ca-"

// adminTrustFile is the CA bundle of a member's admin endpoint.
const adminTrustFile = "admin-ca.crt"

// chassisTrustFile is the file next to render.TrustFile with the CA of the nodes' own certificates.
const chassisTrustFile = "sb-client.crt"

// credential describes the Secret of one workload.
type credential struct {
	secret    string
	component string
	authority string
	profile   pki.Profile
	// trust lists, per file, the CAs that the workload trusts.
	trust map[string][]string
}

var credentials = []credential{
	{
		secret: render.Northbound.Secret, component: render.NorthboundName, authority: authorityNorthbound,
		profile: pki.Profile{CommonName: render.Northbound.Service, DNSNames: []string{render.Northbound.Service}, Server: true},
		trust: map[string][]string{
			pki.TrustKey:   {authorityNorthbound, authorityNorthboundClient, authorityNorthd},
			adminTrustFile: {authorityAdmin},
		},
	},
	{
		secret: render.Southbound.Secret, component: render.SouthboundName, authority: authoritySouthbound,
		profile: pki.Profile{CommonName: render.Southbound.Service, DNSNames: []string{render.Southbound.Service}, Server: true},
		trust: map[string][]string{
			pki.TrustKey:   {authoritySouthbound, authorityChassis, authorityNorthd},
			adminTrustFile: {authorityAdmin},
		},
	},
	{
		secret: render.NorthdSecret, component: render.NorthdName, authority: authorityNorthd,
		profile: pki.Profile{CommonName: "ovn-northd"},
		trust:   map[string][]string{pki.TrustKey: {authorityNorthbound, authoritySouthbound}},
	},
	{
		secret: render.ControllerSecret, component: render.ControllerName, authority: authorityNorthboundClient,
		profile: pki.Profile{CommonName: render.ControllerName},
		trust:   map[string][]string{pki.TrustKey: {authorityNorthbound}},
	},
}

// backupsCredential exists only while the spec names a claim for backups. Its CA is the controller's: both connect to the
// northbound database as clients.
var backupsCredential = credential{
	secret: render.BackupsSecret, component: render.BackupsName, authority: authorityNorthboundClient,
	profile: pki.Profile{CommonName: adminapi.ArchiveName, DNSNames: []string{adminapi.ArchiveName}, Server: true},
	trust: map[string][]string{
		pki.TrustKey:   {authorityNorthbound},
		adminTrustFile: {authorityAdmin, authorityNorthbound}, // clients: the operator, and members that a recovery re-creates
	},
}

// issueCertificates creates the CAs, the Secrets of the workloads and the nodes' CA bundle. It reuses certificates while
// they are valid for their purpose and schedules a pass for the first renewal.
func (r *Reconciler) issueCertificates(ctx context.Context, p *pass) error {
	p.authorities = map[string]*pki.Authority{}
	for _, name := range authorities {
		if err := r.ensureAuthority(ctx, p, name); err != nil {
			return err
		}
	}
	wanted := credentials
	if p.config.Spec.Central.Backup.PersistentVolumeClaim != nil {
		wanted = append(slices.Clone(wanted), backupsCredential)
	}
	for _, c := range wanted {
		if err := r.ensureCredential(ctx, p, c); err != nil {
			return err
		}
	}
	return r.apply(ctx, p, []render.Object{&corev1.ConfigMap{
		ObjectMeta: r.certificateMeta(render.TrustConfigMap, render.OpenVSwitch),
		Data: map[string]string{
			render.TrustFile: string(p.authorities[authoritySouthbound].Bundle()),
			// With it, the supervisor of Open vSwitch notices that its certificate is of a CA that was replaced.
			chassisTrustFile: string(p.authorities[authorityChassis].Bundle()),
		},
	}})
}

func (r *Reconciler) ensureAuthority(ctx context.Context, p *pass, name string) error {
	secret := authoritySecretPrefix + name
	held, err := r.secretData(ctx, secret)
	if err != nil {
		return err
	}
	var a *pki.Authority
	if held == nil {
		a, err = pki.NewAuthority("kiln-"+name, p.now)
	} else {
		a, err = pki.ParseAuthority(held)
	}
	if held != nil && err != nil {
		return &halt{reason: "AuthorityDamaged", degraded: true, message: fmt.Sprintf(
			"Secret %s/%s: %s: restore it, or delete it for a new authority, which cuts off everyone until they have its certificates",
			r.Namespace, secret, err)}
	}
	if err != nil {
		return err
	}
	rotation, err := r.rotation(ctx, p, name)
	if err != nil {
		return err
	}
	if err := a.Advance(rotation, p.now); err != nil {
		return err
	}
	p.issuer.note(name, a, rotation, p.now)
	data, err := a.Data()
	if err != nil {
		return fmt.Errorf("encode authority %s: %w", name, err)
	}
	p.authorities[name] = a
	if at := a.NextChange(p.now); !at.IsZero() {
		p.wakeAt(at)
	}
	// The Secret has no owner. A CA outlives the OVNCluster, like database files and node keys, so that a new OVNCluster
	// uses a CA that its clients already trust.
	return r.applyOne(ctx, p, r.certificateSecret(secret, "kiln-ca", data))
}

func (r *Reconciler) ensureCredential(ctx context.Context, p *pass, c credential) error {
	held, err := r.secretData(ctx, c.secret)
	if err != nil {
		return err
	}
	authority := p.authorities[c.authority]
	kp := pki.KeyPair{Certificate: held[pki.CertificateKey], Key: held[pki.PrivateKeyKey]}
	if !authority.Current(kp, c.profile, p.now) {
		if kp, err = authority.Issue(c.profile, p.now); err != nil {
			return err
		}
	}
	renewal, err := kp.Renewal()
	if err != nil {
		return err
	}
	if renewal.After(p.now) { // otherwise the CA's own expiration limits it
		p.wakeAt(renewal)
	}
	data := map[string][]byte{pki.CertificateKey: kp.Certificate, pki.PrivateKeyKey: kp.Key}
	for _, file := range slices.Sorted(maps.Keys(c.trust)) {
		for _, name := range c.trust[file] {
			data[file] = append(data[file], p.authorities[name].Bundle()...)
		}
	}
	return r.apply(ctx, p, []render.Object{r.certificateSecret(c.secret, c.component, data)})
}

func (r *Reconciler) certificateSecret(name, component string, data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: r.certificateMeta(name, component),
		Type:       corev1.SecretTypeTLS,
		Data:       data,
	}
}

func (r *Reconciler) certificateMeta(name, component string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: r.Namespace, Labels: map[string]string{
		render.ManagedByLabel: render.ManagedBy,
		render.PartOfLabel:    render.PartOf,
		render.ComponentLabel: component,
	}}
}

// operatorLifetime is the validity of the operator's certificate for admin endpoints. callTLS issues a new one for each
// use.
const operatorLifetime = time.Hour

// adminCredential issues the operator's certificate for the members' admin endpoints. The operator does not store it.
func (p *pass) adminCredential() (pki.KeyPair, error) {
	return p.authorities[authorityAdmin].Issue(pki.Profile{CommonName: "kiln-operator", Lifetime: operatorLifetime}, p.now)
}
