// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/certs"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/controllers/operator/status"
	"github.com/kiln-net/kiln/internal/serving/pki"
)

func (r *Reconciler) issueCertificates(ctx context.Context, p *pass) (err error) {
	p.authorities, err = r.certificates.issue(ctx, p)
	return err
}

func (r *Reconciler) orderAuthorities(ctx context.Context, p *pass) error {
	return r.certificates.order(ctx, p)
}

// certificates issues the CAs and certificates of packages certs and pki, and orders CAs from an issuer.
type certificates struct {
	// APIReader bypasses the cache.
	APIReader client.Reader
	namespace string
	secrets   *certs.Secrets
	kinds     *optionalKinds
	// ordersCancelled is set after all unused Certificates have been deleted.
	ordersCancelled bool
}

// issue creates the CAs, the Secrets of the workloads and the nodes' CA bundle, and returns the CAs by name. It reuses certificates while
// they are valid for their purpose and schedules a pass for the first renewal.
func (r *certificates) issue(ctx context.Context, p *pass) (map[string]*pki.Authority, error) {
	authorities := map[string]*pki.Authority{}
	for _, name := range certs.Authorities {
		a, err := r.ensureAuthority(ctx, p, name)
		if err != nil {
			return nil, err
		}
		authorities[name] = a
	}
	wanted := certs.Credentials
	if p.config.Spec.Central.Backup.PersistentVolumeClaim != nil {
		wanted = append(slices.Clone(wanted), certs.Backups)
	}
	if render.HasMonitor(&p.config.Spec) {
		wanted = append(slices.Clone(wanted), certs.Monitor)
	}
	for _, c := range wanted {
		if err := r.ensureCredential(ctx, p, c, authorities); err != nil {
			return nil, err
		}
	}
	return authorities, p.objects.Apply(ctx, &corev1.ConfigMap{
		ObjectMeta: r.meta(render.TrustConfigMap, render.OpenVSwitch),
		Data: map[string]string{
			render.TrustFile: string(authorities[certs.Southbound].Bundle()),
			// With it, the supervisor of Open vSwitch notices that its certificate is of a CA that was replaced.
			certs.ChassisTrustFile: string(authorities[certs.Chassis].Bundle()),
		},
	})
}

func (r *certificates) ensureAuthority(ctx context.Context, p *pass, name string) (*pki.Authority, error) {
	secret := certs.SecretPrefix + name
	held, err := r.secrets.Data(ctx, secret)
	if err != nil {
		return nil, err
	}
	var a *pki.Authority
	if held == nil {
		a, err = pki.NewAuthority("kiln-"+name, p.Now)
	} else {
		a, err = pki.ParseAuthority(held)
	}
	if held != nil && err != nil {
		return nil, &status.Halt{Reason: "AuthorityDamaged", Degraded: true, Message: fmt.Sprintf(
			"Secret %s/%s: %s: restore it, or delete it for a new authority, which cuts off everyone until they have its certificates",
			r.namespace, secret, err)}
	}
	if err != nil {
		return nil, err
	}
	rotation, err := r.rotation(ctx, p, name)
	if err != nil {
		return nil, err
	}
	if err := a.Advance(rotation, p.Now); err != nil {
		return nil, err
	}
	p.Issuer.Note(name, a, rotation, p.Now)
	data, err := a.Data()
	if err != nil {
		return nil, fmt.Errorf("encode authority %s: %w", name, err)
	}
	if at := a.NextChange(p.Now); !at.IsZero() {
		p.WakeAt(at)
	}
	// The Secret has no owner. A CA outlives the OVNCluster, like database files and node keys, so that a new OVNCluster
	// uses a CA that its clients already trust.
	return a, p.objects.ApplyUnowned(ctx, r.secret(secret, "kiln-ca", data))
}

func (r *certificates) ensureCredential(ctx context.Context, p *pass, c certs.Credential, authorities map[string]*pki.Authority) error {
	held, err := r.secrets.Data(ctx, c.Secret)
	if err != nil {
		return err
	}
	authority := authorities[c.Authority]
	kp := pki.KeyPair{Certificate: held[pki.CertificateKey], Key: held[pki.PrivateKeyKey]}
	if !authority.Current(kp, c.Profile, p.Now) {
		if kp, err = authority.Issue(c.Profile, p.Now); err != nil {
			return err
		}
	}
	renewal, err := kp.Renewal()
	if err != nil {
		return err
	}
	if renewal.After(p.Now) { // otherwise the CA's own expiration limits it
		p.WakeAt(renewal)
	}
	data := map[string][]byte{pki.CertificateKey: kp.Certificate, pki.PrivateKeyKey: kp.Key}
	for _, file := range slices.Sorted(maps.Keys(c.Trust)) {
		for _, name := range c.Trust[file] {
			data[file] = append(data[file], authorities[name].Bundle()...)
		}
	}
	return p.objects.Apply(ctx, r.secret(c.Secret, c.Component, data))
}

func (r *certificates) secret(name, component string, data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: r.meta(name, component),
		Type:       corev1.SecretTypeTLS,
		Data:       data,
	}
}

func (r *certificates) meta(name, component string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: r.namespace, Labels: map[string]string{
		render.ManagedByLabel:   render.ManagedBy,
		v1alpha1.PartOfLabel:    v1alpha1.PartOf,
		v1alpha1.ComponentLabel: component,
	}}
}
