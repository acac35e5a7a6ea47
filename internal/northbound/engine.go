// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package northbound makes the northbound database equal to what translators want.
package northbound

import (
	"context"
	"errors"

	"github.com/go-logr/logr"

	"github.com/kiln-net/kiln/internal/northbound/desired"
	ovsdbclient "github.com/kiln-net/kiln/internal/ovsdb/client"
)

var (
	// ErrWaiting says that a parent or a referenced row is not in the database yet. Its arrival calls the owner's subscriber.
	ErrWaiting = errors.New("waiting for a row of another owner")
	// ErrDeposed says that this process does not lead: another has taken a later term, or Lead has not been called.
	ErrDeposed = errors.New("not the leader")
)

// Engine applies desired rows to the northbound database.
type Engine struct{}

// New returns an engine on a connected session.
func New(_ *ovsdbclient.Session, _ logr.Logger) (*Engine, error) { return &Engine{}, nil }

// Start runs the engine until ctx ends.
func (e *Engine) Start(ctx context.Context) error { <-ctx.Done(); return nil }

// Lead takes the next term.
func (e *Engine) Lead(_ context.Context) error { return errors.ErrUnsupported }

// Apply makes the rows that o owns equal to want, in one transaction. Applying the same rows again sends nothing.
func (e *Engine) Apply(_ context.Context, _ desired.Owner, _ []desired.Row) error {
	return errors.ErrUnsupported
}

// Owners returns the owners of a kind that have rows in the database.
func (e *Engine) Owners(_ string) []desired.Owner { return nil }

// Subscribe registers f for owners of a kind.
func (e *Engine) Subscribe(_ string, _ func(desired.Owner)) {}

// List returns the rows of one table owned by owners of a kind.
func List[T any](_ *Engine, _ string) map[desired.Owner][]*T { return nil }
