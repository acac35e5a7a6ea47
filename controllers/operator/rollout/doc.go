// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package rollout plans the replacement of pods in an upgrade or a rollback. It is pure: Upgrade.Plan computes from the
// observed nodes and pods which pods may be replaced now. The operator executes the plan.
package rollout
