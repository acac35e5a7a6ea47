// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// secretNames returns the names of all Secrets that the operator reads and writes.
func secretNames() []string {
	names := []string{backupsCredential.secret}
	for _, c := range credentials {
		names = append(names, c.secret)
	}
	for _, name := range authorities {
		names = append(names, authoritySecretPrefix+name, issuedPrefix+name)
	}
	return names
}

// newSecretCaches returns a cache per Secret, by name. RBAC limits list and watch to named objects only where a request selects one
// name, so one cache of several Secrets would need the right to read all Secrets of the namespace.
func newSecretCaches(mgr ctrl.Manager, namespace string) (map[string]cache.Cache, error) {
	caches := map[string]cache.Cache{}
	for _, name := range secretNames() {
		c, err := cache.New(mgr.GetConfig(), cache.Options{
			HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(),
			DefaultNamespaces:    map[string]cache.Config{namespace: {}},
			DefaultFieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name),
			DefaultTransform:     cache.TransformStripManagedFields(),
		})
		if err != nil {
			return nil, fmt.Errorf("make the cache of Secret %s: %w", name, err)
		}
		if err := mgr.Add(c); err != nil {
			return nil, fmt.Errorf("add the cache of Secret %s: %w", name, err)
		}
		caches[name] = c
	}
	return caches, nil
}

// cachedSecret returns a Secret of secretNames from its cache, or nil on a cache miss.
func (r *Reconciler) cachedSecret(ctx context.Context, name string) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	err := r.secrets[name].Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: name}, secret)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get Secret %s: %w", name, err)
	}
	return secret, nil
}

// secretData returns the data of a Secret, or nil if the API server reports that it does not exist. A cache miss is not enough: the cache
// may be stale, and a second CA would cut off all clients that trust the first. For the same reason the data of a Secret without data is empty
// and not nil: the operator does not replace a CA that a user has damaged.
func (r *Reconciler) secretData(ctx context.Context, name string) (map[string][]byte, error) {
	secret, err := r.cachedSecret(ctx, name)
	if err != nil {
		return nil, err
	}
	if secret == nil {
		secret = &corev1.Secret{}
		err = r.APIReader.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: name}, secret)
	}
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read Secret %s: %w", name, err)
	case secret.Data == nil:
		return map[string][]byte{}, nil
	}
	return secret.Data, nil
}

// pruneSecrets is prune for Secrets.
func (r *Reconciler) pruneSecrets(ctx context.Context, p *pass) error {
	for _, name := range secretNames() {
		secret, err := r.cachedSecret(ctx, name)
		if err != nil {
			return err
		}
		if secret == nil {
			continue
		}
		if err := r.pruneOne(ctx, p, objectKey{secretKind, client.ObjectKeyFromObject(secret)}, secret); err != nil {
			return err
		}
	}
	return nil
}
