// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package certs

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/internal/k8s"
)

// Secrets reads the Secrets of the operator in one namespace.
type Secrets struct {
	Namespace string
	// API reads from the API server.
	API client.Reader
	// Caches has a cache for each Secret, by the Secret's name.
	Caches map[string]cache.Cache
}

// NewSecrets adds a cache for each of SecretNames to a manager. RBAC limits list and watch to named objects only where a request selects one
// name, so one cache of several Secrets would need the right to read all Secrets of the namespace.
func NewSecrets(mgr ctrl.Manager, namespace string) (*Secrets, error) {
	caches := map[string]cache.Cache{}
	for _, name := range SecretNames() {
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
	return &Secrets{Namespace: namespace, API: mgr.GetAPIReader(), Caches: caches}, nil
}

// Cached returns a Secret of SecretNames from its cache, or nil on a cache miss.
func (s *Secrets) Cached(ctx context.Context, name string) (*corev1.Secret, error) {
	secret, err := k8s.Find[corev1.Secret](ctx, s.Caches[name], client.ObjectKey{Namespace: s.Namespace, Name: name})
	if err != nil {
		return nil, fmt.Errorf("get Secret %s: %w", name, err)
	}
	return secret, nil
}

// Data returns the data of a Secret, or nil if the API server reports that it does not exist. A cache miss is not enough: the cache
// may be stale, and a second CA would cut off all clients that trust the first. For the same reason the data of a Secret without data is empty
// and not nil: the operator does not replace a CA that a user has damaged.
func (s *Secrets) Data(ctx context.Context, name string) (map[string][]byte, error) {
	secret, err := s.Cached(ctx, name)
	if err != nil {
		return nil, err
	}
	if secret == nil {
		secret, err = k8s.Find[corev1.Secret](ctx, s.API, client.ObjectKey{Namespace: s.Namespace, Name: name})
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("read Secret %s: %w", name, err)
	case secret == nil:
		return nil, nil
	case secret.Data == nil:
		return map[string][]byte{}, nil
	}
	return secret.Data, nil
}
