// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
)

// Session is a connection to the northbound database.
type Session struct{}

// Northbound connects to the leader of the northbound database.
func Northbound(_ context.Context, _ Options) (*Session, error) {
	return nil, errors.ErrUnsupported
}

// SetEndpoints changes the servers to connect to; a connection to a server that is still listed stays.
func (s *Session) SetEndpoints(_ []string) {}
