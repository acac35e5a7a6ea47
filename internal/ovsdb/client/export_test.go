// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import "time"

// SetTransactTimeout sets the timeout of a transaction.
func (s *Session) SetTransactTimeout(d time.Duration) { s.timeout = d }

// WaitingForLeaders returns options with which a session waits a day for the answer to a leadership query. With them a test does not end if the
// session waits for a server that does not answer.
func WaitingForLeaders(endpoints []string) Options {
	return Options{Endpoints: endpoints, leaderTimeout: 24 * time.Hour}
}
