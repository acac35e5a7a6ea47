// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"

	"github.com/kiln-net/kiln/controllers/operator/database"
)

func (r *Reconciler) placeDatabases(_ context.Context, p *pass) (err error) {
	p.config.Members, err = database.Place(p.forDatabases())
	return err
}

func (r *Reconciler) chooseDirectory(ctx context.Context, p *pass) (err error) {
	p.config.Spec.Central.DataDirectory, p.config.PreviousDataDirectory, err = database.ChooseDirectory(ctx, p.forDatabases())
	return err
}

func (r *Reconciler) runBackups(ctx context.Context, p *pass) (err error) {
	p.archive, err = r.databases.RunBackups(ctx, p.forDatabases())
	return err
}

func (r *Reconciler) runDatabases(ctx context.Context, p *pass) error {
	return r.databases.Run(ctx, p.forDatabases())
}

func (r *Reconciler) removeChassis(ctx context.Context, p *pass) error {
	return r.databases.RemoveChassis(ctx, p.forDatabases())
}

func (r *Reconciler) finishMove(_ context.Context, p *pass) error {
	return database.FinishMove(p.forDatabases())
}
