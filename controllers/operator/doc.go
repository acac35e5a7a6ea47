// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package operator installs and operates OVN from the one OVNCluster. A pass runs phases in a fixed order, each of which may end
// it; objects come from package render, are applied server-side, owned by the OVNCluster and pruned when no longer wanted; the
// status is computed once, at the end of the pass. A second controller grants nodes their chassis certificates.
package operator
