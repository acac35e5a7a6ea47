// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"errors"
	"slices"

	"sigs.k8s.io/knftables"
)

const (
	// deletionBatch is the maximum number of objects that one transaction deletes.
	deletionBatch = 1000
	// maxRefusals bounds the number of single objects whose deletion is refused: each costs two transactions per halving of a batch.
	maxRefusals = 16
)

// deletion deletes objects in few transactions.
type deletion[T any] struct {
	nft knftables.Interface
	// write adds the deletion of one object to a transaction.
	write func(*knftables.Transaction, T)
	// deleted receives objects that no longer exist; it may be nil.
	deleted  func([]T)
	refusals int
}

// run deletes objects. It returns the refusals of single objects, except of objects that do not exist. After maxRefusals refusals it
// leaves out the remaining objects.
func (d *deletion[T]) run(ctx context.Context, objects []T) error {
	var failed []error
	for batch := range slices.Chunk(objects, deletionBatch) {
		failed = append(failed, d.bisect(ctx, batch))
	}
	return errors.Join(failed...)
}

// exhausted reports whether run left out objects.
func (d *deletion[T]) exhausted() bool { return d.refusals >= maxRefusals }

// bisect deletes objects in one transaction or, because one refused object fails the transaction, each half separately.
func (d *deletion[T]) bisect(ctx context.Context, objects []T) error {
	if d.exhausted() {
		return nil
	}
	tx := d.nft.NewTransaction()
	for _, o := range objects {
		d.write(tx, o)
	}
	err := d.nft.Run(ctx, tx)
	switch half := len(objects) / 2; {
	case err != nil && ctx.Err() != nil:
		return err
	case err != nil && half > 0:
		return errors.Join(d.bisect(ctx, objects[:half]), d.bisect(ctx, objects[half:]))
	case err != nil:
		d.refusals++
		if !knftables.IsNotFound(err) {
			return err
		}
	}
	if d.deleted != nil {
		d.deleted(objects)
	}
	return nil
}
