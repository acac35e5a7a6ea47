// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/certs"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/pki"
)

// orderTimeout limits the delay that an unresponsive cert-manager webhook can cause.
const orderTimeout = 5 * time.Second

// orderKinds are watched once the API serves them and the spec names an issuer.
var orderKinds = []schema.GroupVersionKind{certs.CertificateKind, certs.RequestKind}

// rotation returns whether an issuer creates the successors of a CA, and the certificate that it has issued. A Secret
// of another issuer than the requested one is ignored: cert-manager is about to replace it.
func (r *Reconciler) rotation(ctx context.Context, p *pass, name string) (pki.Rotation, error) {
	ref := p.config.Spec.Certificates.IssuerRef
	if ref == nil {
		return pki.Rotation{}, nil
	}
	ordered := pki.Rotation{ByIssuer: true}
	secret, err := r.secrets.Cached(ctx, certs.IssuedPrefix+name)
	if err != nil || secret == nil {
		return ordered, err
	}
	by := v1alpha1.IssuerReference{
		Name:  secret.Annotations[certs.IssuerNameAnnotation],
		Kind:  secret.Annotations[certs.IssuerKindAnnotation],
		Group: secret.Annotations[certs.IssuerGroupAnnotation],
	}
	if by != *ref {
		return ordered, nil
	}
	ordered.Issued, err = pki.ParseIssued(
		pki.KeyPair{Certificate: secret.Data[pki.CertificateKey], Key: secret.Data[pki.PrivateKeyKey]}, p.now)
	if err != nil {
		p.issuer.Troubles = append(p.issuer.Troubles, fmt.Sprintf("the authority in Secret %s/%s cannot be used: %s", r.Namespace, secret.Name, err))
	}
	return ordered, nil
}

// orderAuthorities applies a Certificate for each CA, or deletes all of them if the operator creates the CAs itself. The
// existing CAs stay in use whatever the result.
func (r *Reconciler) orderAuthorities(ctx context.Context, p *pass) error {
	ctx, cancel := context.WithTimeout(ctx, orderTimeout)
	defer cancel()
	ref := p.config.Spec.Certificates.IssuerRef
	if ref == nil {
		return r.cancelOrders(ctx, p)
	}
	r.ordersCancelled = false
	served, err := r.defined(ctx, certs.CertificateDefinition)
	if err != nil {
		return err
	}
	if !served {
		p.issuer.Troubles = append(p.issuer.Troubles,
			"the API does not serve certificates.cert-manager.io: install cert-manager, or take spec.certificates.issuerRef away")
		return r.unwatch(ctx, orderKinds...)
	}
	if err := r.watch(orderKinds...); err != nil {
		return err
	}
	for _, name := range certs.Authorities {
		if err := r.apply(ctx, p, []render.Object{certs.Order(r.Namespace, name, r.certificateMeta("", "kiln-ca").Labels, p.config.Spec.Certificates)}); err != nil {
			return err
		}
		if p.issuer.Missing[name] == "" {
			continue
		}
		if err := r.explain(ctx, p, name); err != nil {
			return err
		}
	}
	return nil
}

// cancelOrders deletes the Certificates of an issuer that the spec no longer names, and the Secrets with keys that
// cert-manager created for them.
func (r *Reconciler) cancelOrders(ctx context.Context, p *pass) error {
	if err := r.unwatch(ctx, orderKinds...); err != nil {
		return err
	}
	if !r.ordersCancelled {
		if err := r.deleteOrders(ctx, p); err != nil {
			return err
		}
		r.ordersCancelled = true
	}
	for _, name := range certs.Authorities {
		secret, err := r.secrets.Cached(ctx, certs.IssuedPrefix+name)
		if err == nil && secret != nil {
			err = r.remove(ctx, secret, secretKind.Kind)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// deleteOrders deletes every Certificate of the OVNCluster. It reads the API server, because without an issuer there is
// no informer.
func (r *Reconciler) deleteOrders(ctx context.Context, p *pass) error {
	served, err := r.defined(ctx, certs.CertificateDefinition)
	if err != nil || !served {
		return err
	}
	var list unstructured.UnstructuredList
	list.SetGroupVersionKind(certs.CertificateKind)
	err = r.APIReader.List(ctx, &list, client.InNamespace(r.Namespace), client.MatchingLabels{render.ManagedByLabel: render.ManagedBy})
	if err != nil {
		return fmt.Errorf("list Certificates: %w", err)
	}
	for i := range list.Items {
		if !metav1.IsControlledBy(&list.Items[i], p.cluster) {
			continue
		}
		if err := r.remove(ctx, &list.Items[i], certs.CertificateKind.Kind); err != nil {
			return err
		}
	}
	return nil
}

// explain records why cert-manager has not issued a CA. It uses the message of the newest CertificateRequest to this
// issuer, or else the Certificate's.
func (r *Reconciler) explain(ctx context.Context, p *pass, name string) error {
	key := objectKey{certs.CertificateKind, types.NamespacedName{Namespace: r.Namespace, Name: certs.IssuedPrefix + name}}
	object, err := r.cached(ctx, key)
	if err != nil {
		return err
	}
	certificate, _ := object.(*unstructured.Unstructured)
	var requests unstructured.UnstructuredList
	requests.SetGroupVersionKind(certs.RequestKind)
	if certificate != nil {
		if err := r.cache.List(ctx, &requests, client.InNamespace(r.Namespace)); err != nil {
			return fmt.Errorf("list CertificateRequests: %w", err)
		}
	}
	refusal := certs.Refusal(certificate, requests.Items)
	what := p.issuer.Missing[name]
	at := fmt.Sprintf("Certificate %s/%s: ", r.Namespace, key.Name)
	switch {
	case refusal != "":
		p.issuer.Troubles = append(p.issuer.Troubles, what+at+refusal)
	case p.issuer.Overdue[name]:
		p.issuer.Troubles = append(p.issuer.Troubles, what+"see why cert-manager does not renew "+strings.TrimSuffix(at, ": "))
	case len(p.issuer.Troubles) == 0:
		_, message := certs.Readiness(certificate)
		p.issuer.Waiting = append(p.issuer.Waiting, what+at+message)
	}
	return nil
}
