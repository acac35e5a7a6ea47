// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"os"
	"testing"
	"time"

	"github.com/kiln-net/kiln/internal/testing/eventually"
)

// elections is why tests wait long when members join, leave or become leader: one or two election timers of a second, and
// elections can repeat.
var elections = eventually.Reason{Why: "elections", Base: 15 * time.Second}

func TestMain(m *testing.M) {
	os.Exit(eventually.Main(m, eventually.Allowed{
		"TestCluster":                                elections,
		"TestAMemberWithLostDataJoinsAgain":          elections,
		"TestRecovery":                               elections,
		"TestAServerComesBackOnceItsDiskHasRoom":     elections,
		"TestAFileThatTheServerCannotReadIsReplaced": elections,
		"TestANewImageConvertsTheSchema":             elections,
		"TestClockJumps":                             elections,
	}))
}
