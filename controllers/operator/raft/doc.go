// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package raft decides how the membership of a database changes, and how a database without a quorum is recovered. It is
// pure: Record merges the members' reports into the record of the database, and Membership.Next computes the next step
// from that record and the observed nodes. The operator executes the step.
package raft
