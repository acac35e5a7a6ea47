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

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/certs"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/pki"
)

// issueCertificates creates the CAs, the Secrets of the workloads and the nodes' CA bundle. It reuses certificates while
// they are valid for their purpose and schedules a pass for the first renewal.
func (r *Reconciler) issueCertificates(ctx context.Context, p *pass) error {
	p.authorities = map[string]*pki.Authority{}
	for _, name := range certs.Authorities {
		if err := r.ensureAuthority(ctx, p, name); err != nil {
			return err
		}
	}
	wanted := certs.Credentials
	if p.config.Spec.Central.Backup.PersistentVolumeClaim != nil {
		wanted = append(slices.Clone(wanted), certs.Backups)
	}
	if render.HasMonitor(&p.config.Spec) {
		wanted = append(slices.Clone(wanted), certs.Monitor)
	}
	for _, c := range wanted {
		if err := r.ensureCredential(ctx, p, c); err != nil {
			return err
		}
	}
	return r.apply(ctx, p, []render.Object{&corev1.ConfigMap{
		ObjectMeta: r.certificateMeta(render.TrustConfigMap, render.OpenVSwitch),
		Data: map[string]string{
			render.TrustFile: string(p.authorities[certs.Southbound].Bundle()),
			// With it, the supervisor of Open vSwitch notices that its certificate is of a CA that was replaced.
			certs.ChassisTrustFile: string(p.authorities[certs.Chassis].Bundle()),
		},
	}})
}

func (r *Reconciler) ensureAuthority(ctx context.Context, p *pass, name string) error {
	secret := certs.SecretPrefix + name
	held, err := r.secrets.Data(ctx, secret)
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
	p.issuer.Note(name, a, rotation, p.now)
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

func (r *Reconciler) ensureCredential(ctx context.Context, p *pass, c certs.Credential) error {
	held, err := r.secrets.Data(ctx, c.Secret)
	if err != nil {
		return err
	}
	authority := p.authorities[c.Authority]
	kp := pki.KeyPair{Certificate: held[pki.CertificateKey], Key: held[pki.PrivateKeyKey]}
	if !authority.Current(kp, c.Profile, p.now) {
		if kp, err = authority.Issue(c.Profile, p.now); err != nil {
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
	for _, file := range slices.Sorted(maps.Keys(c.Trust)) {
		for _, name := range c.Trust[file] {
			data[file] = append(data[file], p.authorities[name].Bundle()...)
		}
	}
	return r.apply(ctx, p, []render.Object{r.certificateSecret(c.Secret, c.Component, data)})
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
		render.ManagedByLabel:   render.ManagedBy,
		v1alpha1.PartOfLabel:    v1alpha1.PartOf,
		v1alpha1.ComponentLabel: component,
	}}
}

// operatorLifetime is the validity of the operator's certificate for admin endpoints. callTLS issues a new one for each
// use.
const operatorLifetime = time.Hour

// adminCredential issues the operator's certificate for the members' admin endpoints. The operator does not store it.
func (p *pass) adminCredential() (pki.KeyPair, error) {
	return p.authorities[certs.Admin].Issue(pki.Profile{CommonName: "kiln-operator", Lifetime: operatorLifetime}, p.now)
}
