// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package database

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/observed"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/controllers/operator/status"
)

// reasonMoving is the reason of the condition Progressing when a step of a change of dataDirectory is recorded.
const reasonMoving = "MovingData"

// nextDirectories returns the directories to record next. Both are recorded before the first member can restart in the new one, and until
// all members of both databases have moved their files.
func nextDirectories(recorded []string, want string, done bool) []string {
	switch {
	case len(recorded) == 1 && recorded[0] != want:
		return []string{recorded[0], want}
	case len(recorded) == 2 && done && slices.Contains(recorded, want):
		return []string{want}
	}
	return recorded
}

// OtherDirectory returns the recorded directory that is not the wanted one; empty if there is none.
func OtherDirectory(recorded []string, want string) string {
	i := slices.IndexFunc(recorded, func(d string) bool { return d != want })
	if i < 0 {
		return ""
	}
	return recorded[i]
}

// ChooseDirectory records a change of the data directory, and ends the pass so that the record is written before a member restarts. It returns the
// directory of the members, and the previous one if there are members that have not moved their files.
func ChooseDirectory(ctx context.Context, in *Input) (directory, previous string, err error) {
	recorded, want := &in.OVNCluster.Status.DataDirectories, in.Config.Spec.Central.DataDirectory
	if len(*recorded) == 0 {
		live, err := observed.Workload(ctx, in.Objects, in.Config.Namespace, render.NorthboundName)
		if err != nil {
			return "", "", err
		}
		used := want
		if set, is := live.(*appsv1.StatefulSet); is {
			used = cmp.Or(render.DataDirectory(set), used)
		}
		*recorded = []string{used}
	}
	if len(*recorded) == 2 && !slices.Contains(*recorded, want) { // the API refuses it, unless the record is newer
		want = (*recorded)[1]
	}
	if next := nextDirectories(*recorded, want, false); !slices.Equal(next, *recorded) {
		*recorded = next
		return "", "", &status.Halt{Reason: reasonMoving, Message: fmt.Sprintf("members of the databases move their files from %s to %s", next[0], next[1])}
	}
	return want, OtherDirectory(*recorded, want), nil
}

// FinishMove removes the previous directory from the record when every member has restarted in the new one.
func FinishMove(in *Input) error {
	recorded, want := &in.OVNCluster.Status.DataDirectories, in.Config.Spec.Central.DataDirectory
	moved := !in.Plan.Back && in.Upgrade.Done(v1alpha1.StageDatabases)
	if next := nextDirectories(*recorded, want, moved); !slices.Equal(next, *recorded) {
		*recorded = next
		return &status.Halt{Reason: reasonMoving, Message: "the files of the databases are in " + want}
	}
	return nil
}
