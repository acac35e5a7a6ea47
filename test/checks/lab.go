// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package checks

import (
	lab "github.com/kiln-net/kiln/hack/lab/cluster"
	"github.com/kiln-net/kiln/hack/lab/topology"
	"github.com/kiln-net/kiln/test/cluster"
)

// InLab returns the environment of the checks in a running lab.
func InLab(l *lab.Cluster, c *cluster.Cluster, namespace string) (Env, error) {
	workers, err := cluster.Workers(l)
	if err != nil {
		return Env{}, err
	}
	return Env{
		Cluster: c, Node: cluster.LabNode{Lab: l}, Namespace: namespace,
		Near: workers[0], Far: workers[1],
		Outside: l.OutsideAddresses(), OutsidePort: topology.OutsidePort,
	}, nil
}
