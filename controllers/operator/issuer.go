// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/pki"
)

// Kinds of cert-manager (its API reference, cert-manager.io/v1). The operator uses them without typed clients, so
// cert-manager is optional.
var (
	certificateKind = schema.GroupVersionKind{Group: "cert-manager.io", Version: "v1", Kind: "Certificate"}
	requestKind     = schema.GroupVersionKind{Group: "cert-manager.io", Version: "v1", Kind: "CertificateRequest"}
)

const (
	certificateDefinition = "certificates.cert-manager.io"
	// Annotations of a Secret that name the issuer of its certificate.
	issuerNameAnnotation  = "cert-manager.io/issuer-name"
	issuerKindAnnotation  = "cert-manager.io/issuer-kind"
	issuerGroupAnnotation = "cert-manager.io/issuer-group"
)

// issuedPrefix plus the name of a CA is the name of its Certificate and of the Secret that cert-manager creates for it.
const issuedPrefix = "kiln-issued-"

// orderTimeout limits the delay that an unresponsive cert-manager webhook can cause.
const orderTimeout = 5 * time.Second

// rotation returns whether an issuer creates the successors of a CA, and the certificate that it has issued. A Secret
// of another issuer than the requested one is ignored: cert-manager is about to replace it.
func (r *Reconciler) rotation(ctx context.Context, p *pass, name string) (pki.Rotation, error) {
	ref := p.config.Spec.Certificates.IssuerRef
	if ref == nil {
		return pki.Rotation{}, nil
	}
	ordered := pki.Rotation{ByIssuer: true}
	secret, err := r.cachedSecret(ctx, issuedPrefix+name)
	if err != nil || secret == nil {
		return ordered, err
	}
	by := v1alpha1.IssuerReference{
		Name:  secret.Annotations[issuerNameAnnotation],
		Kind:  secret.Annotations[issuerKindAnnotation],
		Group: secret.Annotations[issuerGroupAnnotation],
	}
	if by != *ref {
		return ordered, nil
	}
	ordered.Issued, err = pki.ParseIssued(
		pki.KeyPair{Certificate: secret.Data[pki.CertificateKey], Key: secret.Data[pki.PrivateKeyKey]}, p.now)
	if err != nil {
		p.issuer.troubles = append(p.issuer.troubles, fmt.Sprintf("the authority in Secret %s/%s cannot be used: %s", r.Namespace, secret.Name, err))
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
	served, err := r.servesCertificates(ctx)
	if err != nil {
		return err
	}
	if !served {
		p.issuer.troubles = append(p.issuer.troubles,
			"the API does not serve certificates.cert-manager.io: install cert-manager, or take spec.certificates.issuerRef away")
		return r.stopWatching(ctx)
	}
	if err := r.watchOrders(); err != nil {
		return err
	}
	for _, name := range authorities {
		if err := r.apply(ctx, p, []render.Object{r.order(name, p.config.Spec.Certificates)}); err != nil {
			return err
		}
		if p.issuer.missing[name] == "" {
			continue
		}
		if err := r.explain(ctx, p, name); err != nil {
			return err
		}
	}
	return nil
}

// order returns the Certificate of a CA. Each renewal creates a new key. The Secret gets the labels of all objects of the
// operator.
func (r *Reconciler) order(name string, spec v1alpha1.Certificates) *unstructured.Unstructured {
	meta := r.certificateMeta(issuedPrefix+name, "kiln-ca")
	labels := map[string]any{}
	for key, value := range meta.Labels {
		labels[key] = value
	}
	u := untyped(certificateKind)
	u.SetNamespace(meta.Namespace)
	u.SetName(meta.Name)
	u.SetLabels(meta.Labels)
	u.Object["spec"] = map[string]any{
		"commonName": "kiln-" + name,
		"isCA":       true,
		"usages":     []any{"cert sign", "crl sign", "digital signature"},
		"secretName": meta.Name,
		"duration":   spec.AuthorityDuration.Duration.String(),
		"privateKey": map[string]any{
			"algorithm": "ECDSA", "size": int64(256), "encoding": "PKCS8", "rotationPolicy": "Always",
		},
		"issuerRef": map[string]any{
			"name": spec.IssuerRef.Name, "kind": spec.IssuerRef.Kind, "group": spec.IssuerRef.Group,
		},
		"secretTemplate":       map[string]any{"labels": labels},
		"revisionHistoryLimit": int64(1),
	}
	return u
}

func (r *Reconciler) servesCertificates(ctx context.Context) (bool, error) {
	d := definition(certificateDefinition)
	if err := r.Get(ctx, client.ObjectKeyFromObject(d), d); err != nil {
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return false, fmt.Errorf("look for the definition of Certificates: %w", err)
	}
	return true, nil
}

// watchOrders starts watches of Certificates and their requests, once the API serves them and the spec names an issuer.
func (r *Reconciler) watchOrders() error {
	if r.watching {
		return nil
	}
	ours := predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetLabels()[render.ManagedByLabel] == render.ManagedBy })
	for _, kind := range []schema.GroupVersionKind{certificateKind, requestKind} {
		if err := r.controller.Watch(source.Kind[client.Object](r.cache, untyped(kind), theCluster, ours)); err != nil {
			return fmt.Errorf("watch %s: %w", kind.Kind, err)
		}
	}
	r.watching = true
	return nil
}

func (r *Reconciler) stopWatching(ctx context.Context) error {
	if !r.watching {
		return nil
	}
	for _, kind := range []schema.GroupVersionKind{certificateKind, requestKind} {
		if err := r.cache.RemoveInformer(ctx, untyped(kind)); err != nil {
			return fmt.Errorf("stop watching %s: %w", kind.Kind, err)
		}
	}
	r.watching = false
	return nil
}

// cancelOrders deletes the Certificates of an issuer that the spec no longer names, and the Secrets with keys that
// cert-manager created for them.
func (r *Reconciler) cancelOrders(ctx context.Context, p *pass) error {
	if err := r.stopWatching(ctx); err != nil {
		return err
	}
	if !r.ordersCancelled {
		if err := r.deleteOrders(ctx, p); err != nil {
			return err
		}
		r.ordersCancelled = true
	}
	for _, name := range authorities {
		secret, err := r.cachedSecret(ctx, issuedPrefix+name)
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
	served, err := r.servesCertificates(ctx)
	if err != nil || !served {
		return err
	}
	var list unstructured.UnstructuredList
	list.SetGroupVersionKind(certificateKind)
	err = r.APIReader.List(ctx, &list, client.InNamespace(r.Namespace), client.MatchingLabels{render.ManagedByLabel: render.ManagedBy})
	if err != nil {
		return fmt.Errorf("list Certificates: %w", err)
	}
	for i := range list.Items {
		if !metav1.IsControlledBy(&list.Items[i], p.cluster) {
			continue
		}
		if err := r.remove(ctx, &list.Items[i], certificateKind.Kind); err != nil {
			return err
		}
	}
	return nil
}
