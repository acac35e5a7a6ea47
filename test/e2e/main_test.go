// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
)

var _ = Describe("the main job", func() {
	It("connects pods, nodes, Services and the outside in both families", Label(smoke), func(ctx SpecContext) {
		expectAllChecks(ctx)
	}, SpecTimeout(6*time.Minute))
})
