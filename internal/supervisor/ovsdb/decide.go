// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"fmt"
	"net/netip"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

// step is what to do about the database file.
type step int

const (
	stepWait step = iota
	stepStart
	stepCreate
	stepJoin
)

// plan is a step and its reason, or what it needs.
type plan struct {
	step step
	// reason of waiting, for readers.
	reason string
	// clusterID and remotes (addresses) of the cluster to join.
	clusterID string
	remotes   []netip.Addr
}

// decide says how this member begins, from the API and the file that is there (nil: none). Only the recorded node may create a
// cluster, and only while no cluster ID is recorded, so that there is never a second cluster. An error needs a person.
func decide(file *identity, status v1alpha1.DatabaseStatus, node string, self netip.Addr) (plan, error) {
	if file != nil {
		return decideWithFile(*file, status, node)
	}
	switch {
	case status.ClusterID != "":
		return decideJoin(status, self), nil
	case status.BootstrapNode == "":
		return plan{reason: "the operator has not recorded yet which node creates the database"}, nil
	case status.BootstrapNode != node:
		return plan{reason: fmt.Sprintf("node %s creates the database", status.BootstrapNode)}, nil
	}
	return plan{step: stepCreate}, nil
}

func decideWithFile(file identity, status v1alpha1.DatabaseStatus, node string) (plan, error) {
	switch {
	case status.ClusterID == "" && status.BootstrapNode != node:
		return plan{reason: fmt.Sprintf("%s is here already, but no cluster ID is recorded and node %q creates the database",
			file.path, status.BootstrapNode)}, nil
	case status.ClusterID != "" && file.clusterID != "" && file.clusterID != status.ClusterID:
		return plan{}, fmt.Errorf("%s belongs to cluster %s, but the OVNCluster's is %s: the file is of another installation; "+
			"move it away to let this member join anew", file.path, file.clusterID, status.ClusterID)
	}
	return plan{step: stepStart}, nil
}

// decideJoin joins through the members that are known to serve, or else through all others.
func decideJoin(status v1alpha1.DatabaseStatus, self netip.Addr) plan {
	var joined, others []netip.Addr
	for _, m := range status.Members {
		address, err := netip.ParseAddr(m.Address)
		if err != nil || address == self {
			continue
		}
		others = append(others, address)
		if m.ServerID != "" {
			joined = append(joined, address)
		}
	}
	if len(joined) > 0 {
		others = joined
	}
	if len(others) == 0 {
		return plan{reason: fmt.Sprintf("cluster %s is recorded, but its file is not here and no other member is known to join through: "+
			"put the file back from the node's disk or a backup", status.ClusterID)}
	}
	return plan{step: stepJoin, clusterID: status.ClusterID, remotes: others}
}
