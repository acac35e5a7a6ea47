// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"

	"github.com/kiln-net/kiln/hack/lab/cache"
	"github.com/kiln-net/kiln/hack/lab/guest"
	"github.com/kiln-net/kiln/hack/lab/prepare"
)

// fill prepares what a lab needs of the cache, and returns the cache.
func (l *lab) fill(ctx context.Context, kubeProxy bool) (cache.Dir, error) {
	if err := needRoot(); err != nil {
		return "", err
	}
	if os.Getenv(guest.InGuest) != "" {
		return cache.Open() // the host has filled it
	}
	o, err := prepare.NewOptions(l.report)
	if err != nil {
		return "", err
	}
	return o.Cache, prepare.Lab(ctx, o, kubeProxy)
}
