// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northd

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/ovncluster"
)

// databases holds the connection methods of both databases.
type databases struct {
	northbound, southbound []string
	// Cluster IDs: ovn-northd takes a recreated database for a stale one, because its index is lower (min_index, ovsdb(7)), and must
	// restart.
	northboundID, southboundID string
	// recovering: the northbound database may be incomplete, and ovn-northd would delete the missing rows from the southbound
	// database.
	recovering bool
	// leaders names the nodes of both leaders; empty unless both are known.
	leaders string
}

func databasesOf(c *v1alpha1.OVNCluster) databases {
	leaders := ""
	if nb, sb := c.Status.Northbound.Leader, c.Status.Southbound.Leader; nb != "" && sb != "" {
		leaders = nb + "," + sb
	}
	return databases{
		leaders:    leaders,
		northbound: ovncluster.Endpoints(c.Status.Northbound, northboundPort), southbound: ovncluster.Endpoints(c.Status.Southbound, southboundPort),
		northboundID: c.Status.Northbound.ClusterID, southboundID: c.Status.Southbound.ClusterID,
		recovering: c.Status.Northbound.Recovering(),
	}
}

func (d databases) complete() bool {
	return len(d.northbound) > 0 && len(d.southbound) > 0 && !d.recovering
}

// equal reports whether both have the same members, in any order. A restart of ovn-northd recomputes everything.
func (d databases) equal(o databases) bool {
	return sameSet(d.northbound, o.northbound) && sameSet(d.southbound, o.southbound) &&
		d.northboundID == o.northboundID && d.southboundID == o.southboundID && d.recovering == o.recovering
}

// members returns a hash of the addresses that fits into a label value.
func (d databases) members() string {
	all := slices.Sorted(slices.Values(slices.Concat(d.northbound, d.southbound)))
	sum := sha256.Sum256([]byte(strings.Join(all, ",")))
	return hex.EncodeToString(sum[:8])
}

// onlyMoved reports whether the databases are the same and at most their members differ.
func (d databases) onlyMoved(o databases) bool {
	return d.northboundID == o.northboundID && d.southboundID == o.southboundID && d.recovering == o.recovering
}

func sameSet(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}
