// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

// memberships selects the tests of raft that need no database servers.
const memberships = "NextStep|StepOfA|JoinsAgain|Converge|Recorded|Reported|Former|Archive"

var operator = []mutant{{
	id: "raft-kick-with-half", bug: "a member is removed while only half of the others serve",
	file: "controllers/operator/raft/membership.go",
	old:  `return 2*serving > rest`,
	new:  `return 2*serving >= rest`,
	run:  memberships,
}, {
	id: "raft-kick-leader", bug: "the leader is removed from its own cluster",
	file: "controllers/operator/raft/membership.go",
	old:  `if server.Address == leader.Address && strings`,
	new:  `if server.Address != leader.Address && strings`,
	run:  memberships,
}, {
	id: "raft-equal-times", bug: "a member that joins again in the same second takes its old files for new ones",
	file: "controllers/operator/raft/membership.go",
	old:  `former.Since != nil && !since.After(former.Since.Time)`,
	new:  `former.Since != nil && since.Before(former.Since)`,
	run:  memberships,
}, {
	id: "raft-replace-before-shrink", bug: "a deleted node is replaced although there is a member too many",
	file: "controllers/operator/raft/membership.go",
	old:  "\t\tcase gone && len(m.Status.Members) > m.Want:\n\t\t\tcontinue // another member is removed first\n",
	new:  "",
	run:  memberships,
}, {
	id: "raft-grow-without-one", bug: "a member is added while another one is away",
	file: "controllers/operator/raft/membership.go",
	old:  `if !m.serves(server) {`,
	new:  `if len(m.Reports) == 0 && !m.serves(server) {`,
	run:  memberships,
}, {
	id: "raft-shrink-without-quorum", bug: "the surplus member leaves although the others have no quorum without it",
	file: "controllers/operator/raft/membership.go",
	old:  "\tif !m.keepsQuorum(leader, server) {\n\t\treturn Step{Message: fmt.Sprintf(\"the member of node %s stays",
	new:  "\tif m.Want == 0 && !m.keepsQuorum(leader, server) {\n\t\treturn Step{Message: fmt.Sprintf(\"the member of node %s stays",
	run:  memberships,
}, {
	id: "raft-foreign-cluster", bug: "a member with the data of another cluster is taken for one of the database",
	file: "controllers/operator/raft/record.go",
	old:  `if report.ClusterID != db.ClusterID {`,
	new:  `if report.ClusterID != db.ClusterID && report.Role == "" {`,
	run:  memberships,
}, {
	id: "raft-report-before-recovery", bug: "a report that predates a recovery brings the replaced cluster back",
	file: "controllers/operator/raft/record.go",
	old:  `superseded := db.Since != nil && report.Since.Before(db.Since.Time)`,
	new:  `superseded := db.Since == nil && report.Since.Before(db.Members[at].Since.Time)`,
	run:  memberships,
}, {
	id: "raft-former-leader", bug: "a former leader of an earlier term is recorded as the leader",
	file: "controllers/operator/raft/record.go",
	old:  `if report.Role == adminapi.RoleLeader && report.Term == db.Term {`,
	new:  `if report.Role == adminapi.RoleLeader {`,
	run:  memberships,
}, {
	id: "raft-half-is-enough", bug: "the loss of half of the members does not count as the loss of the quorum",
	file: "controllers/operator/raft/recovery.go",
	old:  `2*left <= len(voters)`,
	new:  `2*left < len(voters)`,
	run:  memberships,
}, {
	id: "raft-shortest-log", bug: "a recovery from a member takes one without the latest changes",
	file: "controllers/operator/raft/recovery.go",
	old:  `r.LastIndex > most {`,
	new:  `r.LastIndex != most {`,
	run:  memberships,
}, {
	id: "raft-oldest-backup", bug: "a recovery from a backup takes an older one than the newest",
	file: "controllers/operator/raft/recovery.go",
	old:  `b.Time.After(newest) {`,
	new:  `(newest.IsZero() || b.Time.Before(newest)) {`,
	run:  memberships,
}, {
	id: "raft-recovery-in-one-second", bug: "a second recovery within a second does not replace the files of the first",
	file: "controllers/operator/raft/recovery.go",
	old:  `last != nil && !since.After(last.Time)`,
	new:  `last != nil && since.Before(last)`,
	run:  memberships,
}, {
	id: "rollout-member-while-missing", bug: "a database member is replaced while another one is missing",
	file: "controllers/operator/rollout/upgrade.go",
	old:  `if len(members) < want {`,
	new:  `if len(members) == 0 {`,
}, {
	id: "rollout-one-more-node", bug: "one node more than maxUnavailable is down",
	file: "controllers/operator/rollout/nodes.go",
	old:  `case others < u.MaxUnavailable:`,
	new:  `case others <= u.MaxUnavailable:`,
}, {
	id: "rollout-old-trouble-stops", bug: "a failing pod of the previous version stops the upgrade that would repair it",
	file: "controllers/operator/rollout/upgrade.go",
	old:  `if pod.Current && pod.Trouble != "" {`,
	new:  `if pod.Trouble != "" {`,
}, {
	id: "rollout-without-pull", bug: "a node is without Open vSwitch while it pulls the image",
	file: "controllers/operator/rollout/nodes.go",
	old:  `return n.hasImage() || p.Dead`,
	new:  `return n.hasImage() || p.Present`,
}, {
	id: "rollout-databases-first", bug: "the databases are upgraded before the nodes",
	file: "controllers/operator/rollout/upgrade.go",
	old:  `{v1alpha1.StageNodes, v1alpha1.StageDatabases, v1alpha1.StageNorthd, v1alpha1.StageController}`,
	new:  `{v1alpha1.StageDatabases, v1alpha1.StageNodes, v1alpha1.StageNorthd, v1alpha1.StageController}`,
}, {
	id: "rollout-back-in-order", bug: "a rollback begins with the nodes, so that ovn-controller is older than ovn-northd",
	file: "controllers/operator/rollout/upgrade.go",
	old:  "\tif p.Back {\n\t\tslices.Reverse(order)\n\t}\n",
	new:  "",
}, {
	id: "rollout-agent-first", bug: "in a rollback Open vSwitch of a node is replaced before its agent",
	file: "controllers/operator/rollout/nodes.go",
	old:  "\tif back {\n\t\tslices.Reverse(order)\n\t}\n",
	new:  "",
}, {
	id: "rollout-paused-goes-on", bug: "a paused upgrade replaces pods",
	file: "controllers/operator/rollout/upgrade.go",
	old:  `case u.Mode == v1alpha1.UpgradePaused:`,
	new:  `case u.Mode == v1alpha1.UpgradePaused && p.Back:`,
}, {
	id: "rollout-one-canary", bug: "all nodes are upgraded once the last canary is done, although others are not",
	file: "controllers/operator/rollout/nodes.go",
	old:  `done = done && n.done(false)`,
	new:  `done = n.done(false)`,
}, {
	id: "rollout-silent-node-blocks", bug: "a newer pod on a node that does not answer blocks each later upgrade",
	file: "controllers/operator/rollout/upgrade.go",
	old:  `return p.Newer && !p.Silent`,
	new:  `return p.Newer`,
}}
