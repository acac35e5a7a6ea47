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
	"github.com/kiln-net/kiln/internal/serving/pki"
)

// orderTimeout limits the delay that an unresponsive cert-manager webhook can cause.
const orderTimeout = 5 * time.Second

// orderKinds are watched once the API serves them and the spec names an issuer.
var orderKinds = []schema.GroupVersionKind{certs.CertificateKind, certs.RequestKind}

// rotation returns whether an issuer creates the successors of a CA, and the certificate that it has issued. A Secret
// of another issuer than the requested one is ignored: cert-manager is about to replace it.
func (r *certificates) rotation(ctx context.Context, p *pass, name string) (pki.Rotation, error) {
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
		pki.KeyPair{Certificate: secret.Data[pki.CertificateKey], Key: secret.Data[pki.PrivateKeyKey]}, p.Now)
	if err != nil {
		p.Issuer.Troubles = append(p.Issuer.Troubles, fmt.Sprintf("the authority in Secret %s/%s cannot be used: %s", r.namespace, secret.Name, err))
	}
	return ordered, nil
}

// order applies a Certificate for each CA, or deletes all of them if the operator creates the CAs itself. The
// existing CAs stay in use whatever the result.
func (r *certificates) order(ctx context.Context, p *pass) error {
	ctx, cancel := context.WithTimeout(ctx, orderTimeout)
	defer cancel()
	ref := p.config.Spec.Certificates.IssuerRef
	if ref == nil {
		return r.cancelOrders(ctx, p)
	}
	r.ordersCancelled = false
	served, err := r.kinds.defined(ctx, certs.CertificateDefinition)
	if err != nil {
		return err
	}
	if !served {
		p.Issuer.Troubles = append(p.Issuer.Troubles,
			"the API does not serve certificates.cert-manager.io: install cert-manager, or take spec.certificates.issuerRef away")
		return r.kinds.unwatch(ctx, orderKinds...)
	}
	if err := r.kinds.watch(orderKinds...); err != nil {
		return err
	}
	for _, name := range certs.Authorities {
		if err := p.objects.Apply(ctx, certs.Order(r.namespace, name, r.meta("", "kiln-ca").Labels, p.config.Spec.Certificates)); err != nil {
			return err
		}
		if p.Issuer.Missing[name] == "" {
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
func (r *certificates) cancelOrders(ctx context.Context, p *pass) error {
	if err := r.kinds.unwatch(ctx, orderKinds...); err != nil {
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
			err = p.objects.Delete(ctx, secret)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// deleteOrders deletes every Certificate of the OVNCluster. It reads the API server, because without an issuer there is
// no informer.
func (r *certificates) deleteOrders(ctx context.Context, p *pass) error {
	served, err := r.kinds.defined(ctx, certs.CertificateDefinition)
	if err != nil || !served {
		return err
	}
	var list unstructured.UnstructuredList
	list.SetGroupVersionKind(certs.CertificateKind)
	err = r.APIReader.List(ctx, &list, client.InNamespace(r.namespace), client.MatchingLabels{render.ManagedByLabel: render.ManagedBy})
	if err != nil {
		return fmt.Errorf("list Certificates: %w", err)
	}
	for i := range list.Items {
		if !metav1.IsControlledBy(&list.Items[i], p.cluster) {
			continue
		}
		if err := p.objects.Delete(ctx, &list.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

// explain records why cert-manager has not issued a CA. It uses the message of the newest CertificateRequest to this
// issuer, or else the Certificate's.
func (r *certificates) explain(ctx context.Context, p *pass, name string) error {
	key := types.NamespacedName{Namespace: r.namespace, Name: certs.IssuedPrefix + name}
	object, err := p.objects.Cached(ctx, certs.CertificateKind, key)
	if err != nil {
		return err
	}
	certificate, _ := object.(*unstructured.Unstructured)
	var requests unstructured.UnstructuredList
	requests.SetGroupVersionKind(certs.RequestKind)
	if certificate != nil {
		if err := r.kinds.cache.List(ctx, &requests, client.InNamespace(r.namespace)); err != nil {
			return fmt.Errorf("list CertificateRequests: %w", err)
		}
	}
	refusal := certs.Refusal(certificate, requests.Items)
	what := p.Issuer.Missing[name]
	at := fmt.Sprintf("Certificate %s/%s: ", r.namespace, key.Name)
	switch {
	case refusal != "":
		p.Issuer.Troubles = append(p.Issuer.Troubles, what+at+refusal)
	case p.Issuer.Overdue[name]:
		p.Issuer.Troubles = append(p.Issuer.Troubles, what+"see why cert-manager does not renew "+strings.TrimSuffix(at, ": "))
	case len(p.Issuer.Troubles) == 0:
		_, message := certs.Readiness(certificate)
		p.Issuer.Waiting = append(p.Issuer.Waiting, what+at+message)
	}
	return nil
}
