// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"cmp"

	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// KindPolicyLogs owns the meter of the logs of a namespace's NetworkPolicies.
const KindPolicyLogs = "PolicyLogs"

// ClusterLogs stands for the namespace of SecurityGroups and cluster-wide policies, which have a common meter. No namespace has this name.
const ClusterLogs = "cluster_wide"

// LogsOf returns the namespace whose meter the rules of a policy use, or ClusterLogs.
func LogsOf(policy desired.Owner) string { return cmp.Or(policy.Namespace, ClusterLogs) }

// logDrops makes an ACL that drops packets log them, by the meter of a namespace.
func logDrops(acl *nb.ACL, namespace string) {
	acl.Log, acl.Meter, acl.Severity = true, new(meterName(namespace)), new(nb.ACLSeverityWarning)
}

// PolicyLogsOwner returns the owner of the meter of a namespace.
func PolicyLogsOwner(namespace string) desired.Owner {
	return desired.Owner{Kind: KindPolicyLogs, Name: namespace}
}

// PolicyLogsRefs returns the rows of the meter of a namespace.
func PolicyLogsRefs(namespace string) (meter, band desired.Ref) {
	owner := PolicyLogsOwner(namespace)
	return desired.Ref{Owner: owner, Key: "log"}, desired.Ref{Owner: owner, Key: "log-rate"}
}

// PolicyLogs returns the meter that all rules of a namespace share on each node, in packets per second. It returns no rows for the rate 0.
func PolicyLogs(namespace string, rate int) []desired.Row {
	if rate == 0 {
		return nil
	}
	meter, band := PolicyLogsRefs(namespace)
	return []desired.Row{
		{Key: band.Key, Model: &nb.MeterBand{Action: nb.MeterBandActionDrop, Rate: rate}},
		{
			Key:        meter.Key,
			Model:      &nb.Meter{Name: meterName(namespace), Unit: nb.MeterUnitPktps, Fair: new(false)},
			References: []desired.Reference{{Column: "bands", To: []desired.Ref{band}}},
		},
	}
}

// meterName is the name of the meter of a namespace.
func meterName(namespace string) string {
	meter, _ := PolicyLogsRefs(namespace)
	return "log-" + meter.UUID()
}
