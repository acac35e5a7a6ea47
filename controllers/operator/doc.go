// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package operator installs and operates OVN from the single OVNCluster. A pass runs phases in a fixed order, and each
// phase can end the pass. Package render builds the objects; package workload applies them server-side, owned by the
// OVNCluster, and prunes them when they are no longer needed. Package database runs the databases, whose next step package raft decides, and
// package upgrade replaces the pods that package rollout selects. Package observed has the nodes and pods that the pass sees. Phases describe what
// they find in a report, from which package status computes the status once, at the end of a pass. A second controller issues the nodes' chassis
// certificates.
package operator
