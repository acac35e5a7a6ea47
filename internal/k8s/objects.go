// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"context"

	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Find reads one object. It returns nil, without an error, if the object does not exist. It returns errors of Get unchanged.
func Find[T any, P interface {
	*T
	client.Object
}](ctx context.Context, reader client.Reader, key client.ObjectKey, options ...client.GetOption) (P, error) {
	o := P(new(T))
	if err := reader.Get(ctx, key, o, options...); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return o, nil
}

// OlderVersion reports whether resource version version precedes than. It returns false if they cannot be compared.
func OlderVersion(version, than string) bool {
	order, err := resourceversion.CompareResourceVersion(version, than)
	return err == nil && order < 0
}
