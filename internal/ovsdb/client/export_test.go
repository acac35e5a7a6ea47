// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import "time"

// SetTransactTimeout changes how long a transaction may take.
func (s *Session) SetTransactTimeout(d time.Duration) { s.timeout = d }

// LeaderTimeout is how long a server may take to say whether it leads.
const LeaderTimeout = leaderTimeout
