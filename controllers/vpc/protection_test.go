// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package vpc_test

import (
	"fmt"
	"testing"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// rejects returns the rate of a band with the limit of rejects of the tenant.
func rejects(row nbtest.Row) string {
	if ids, _ := row["external_ids"].(map[string]string); ids["kiln-owner"] != "Protection//tenant" || ids["kiln-key"] != "rate/rejects" {
		return ""
	}
	return fmt.Sprint(row["rate"])
}

// limited returns the name of a router or switch that has the limits of the tenant.
func limited(row nbtest.Row) string {
	if row["copp"] != translate.CoppRef("tenant").UUID() {
		return ""
	}
	return row["name"].(string)
}

func TestLimitsFollowTheOVNCluster(t *testing.T) {
	n := start(t)
	v, s := n.newVpc("tenant", nil), n.newSubnet("net", "tenant", "10.0.0.0/24,fd00:10::/64")
	n.Ready(v, s)
	n.Rows("Logical_Router", limited, "tenant")
	n.Rows("Logical_Switch", limited, "net")
	n.Rows("Meter_Band", rejects, "1000")

	n.limits.PacketsPerSecond.Rejects = 300
	n.run()
	n.Rows("Meter_Band", rejects, "300")
	n.Database.Transact(nbtest.Op{"op": "update", "table": "Meter_Band", "where": nbtest.Where("rate", "==", 300), "row": map[string]any{"rate": 3}})
	n.Rows("Meter_Band", rejects, "300")
	n.limits.Mode = v1alpha1.ProtectionUnlimited
	n.run()
	n.Rows("Meter_Band", rejects)
	n.Rows("Logical_Switch", limited, "net")
	n.limits.Mode = v1alpha1.ProtectionLimited
	n.run()
	n.Rows("Meter_Band", rejects, "300")

	n.Delete(v, s)
	n.Gone(v, s)
	n.NoRows("Protection//tenant")
}

// TestAVpcThatIsNotValidHasLimits has a Vpc with the name of an older Subnet. Its subnets refer to its limits, whether it is valid or not.
func TestAVpcThatIsNotValidHasLimits(t *testing.T) {
	n := start(t)
	older := n.newSubnet("tenant", "", "10.9.0.0/24")
	n.Ready(older)
	n.later(older)
	n.newVpc("tenant", nil)
	n.Rows("Meter_Band", rejects, "1000")
}

// TestLimitsOfADeletedVpcAreOrphans has a controller that ends between the deletion of a router and of its limits.
func TestLimitsOfADeletedVpcAreOrphans(t *testing.T) {
	n := start(t)
	v := n.newVpc("tenant", nil)
	n.Ready(v)
	n.process.Stop()
	n.Delete(v)
	if n.Get(v) {
		n.LetGo(v)
	}
	for table, row := range map[string]string{"Logical_Router": translate.RouterRef("tenant").UUID(), "Load_Balancer_Group": translate.ServicesRef("tenant").UUID()} {
		n.Database.Transact(nbtest.Op{"op": "delete", "table": table, "where": []any{[]any{"_uuid", "==", []string{"uuid", row}}}})
	}
	n.run()
	n.NoRows("Protection//tenant")
}
