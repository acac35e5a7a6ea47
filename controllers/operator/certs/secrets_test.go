// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package certs

import (
	"context"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/serving/pki"
)

// oneSecret is a cache, and an API server, with one Secret or none.
type oneSecret struct {
	cache.Cache
	secret *corev1.Secret
}

func (o oneSecret) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	if o.secret == nil {
		return apierrors.NewNotFound(corev1.Resource("secrets"), key.Name)
	}
	o.secret.DeepCopyInto(into.(*corev1.Secret))
	return nil
}

// TestASecretWithoutDataExists: a Secret without data is a damaged CA, and not the absence of one: a new CA would cut off all clients.
func TestASecretWithoutDataExists(t *testing.T) {
	held := &corev1.Secret{Data: map[string][]byte{"a": []byte("b")}}
	for _, c := range []struct {
		name        string
		cached, api *corev1.Secret
		exists      bool
		entries     int
	}{
		{"no Secret", nil, nil, false, 0},
		{"a Secret", held, nil, true, 1},
		{"a Secret that the cache does not have yet", nil, held, true, 1},
		{"a Secret without data", &corev1.Secret{}, nil, true, 0},
		{"a Secret without data that the cache does not have yet", nil, &corev1.Secret{}, true, 0},
	} {
		secrets := &Secrets{API: oneSecret{secret: c.api}, Caches: map[string]cache.Cache{"ca": oneSecret{secret: c.cached}}}
		data, err := secrets.Data(t.Context(), "ca")
		if err != nil || (data != nil) != c.exists || len(data) != c.entries {
			t.Errorf("%s: %v, %v", c.name, data, err)
		}
	}
	if _, err := pki.ParseAuthority(map[string][]byte{}); err == nil {
		t.Error("a CA is read from no data")
	}
}

func TestEveryDatabaseHasTheCAOfItsServers(t *testing.T) {
	for _, db := range render.Databases {
		if name := ServerAuthority(db); !slices.Contains(Authorities, name) {
			t.Errorf("the %s has CA %q", db.Title, name)
		}
	}
}
