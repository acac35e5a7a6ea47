// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/k8s"
)

// Cluster has the settings of the OVNCluster about limits. The zero value has no limit and the kernel's datapath.
type Cluster struct {
	// Changed is the source of events after a change of the limits.
	Changed k8s.RequestSource

	mu        sync.Mutex
	limits    *kubeovnv1.PodLimits
	userspace bool
}

// Set applies the spec of the OVNCluster. It does not block.
func (c *Cluster) Set(spec *v1alpha1.OVNClusterSpec) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.userspace = spec.Nodes.Datapath == v1alpha1.DatapathUserspace // it never changes on an installed cluster
	if equality.Semantic.DeepEqual(c.limits, spec.Tenancy.PodLimits) {
		return
	}
	c.limits = spec.Tenancy.PodLimits.DeepCopy()
	c.Changed.Add("")
}

// Limits returns the limits of subnets without their own; nil if there are none.
func (c *Cluster) Limits() *kubeovnv1.PodLimits {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.limits
}

// Userspace reports whether the nodes have the userspace datapath.
func (c *Cluster) Userspace() bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.userspace
}
