// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import "time"

// SetTransactTimeout sets the timeout of a transaction.
func (s *Session) SetTransactTimeout(d time.Duration) { s.timeout = d }

// LeaderTimeout is the time in which a server must answer the leadership query.
const LeaderTimeout = leaderTimeout
