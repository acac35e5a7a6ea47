// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package operator installs and operates OVN from the single OVNCluster. A pass runs phases in a fixed order, and each
// phase can end the pass. Package render builds the objects; the operator applies them server-side, owned by the
// OVNCluster, and prunes them when they are no longer needed. Package raft decides the next step of a database's
// membership or recovery, and package rollout which pods may be replaced; the operator executes both. The status is
// computed once, at the end of a pass. A second controller issues the nodes' chassis certificates.
package operator
