// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/supervisor/supervisortest"
)

// TestOldFilesThatWereSetAsideGo has what years leave: files of this cluster, one of an earlier cluster, and one that nobody can read.
func TestOldFilesThatWereSetAsideGo(t *testing.T) {
	tr := newTrial(t)
	m := tr.add("cp-1", "127.0.0.31")
	f := newFiles(m.options)
	tr.start(m, v1alpha1.DatabaseStatus{BootstrapNode: "cp-1"})
	status := tr.untilConnected(m, 1)
	tr.must(m.halt())

	aside := func(year int) string { return fmt.Sprintf("%s.aside-%d0101T000000.000", f.path, year) }
	earlier := f
	earlier.path = aside(2019)
	tr.must(earlier.create(t.Context()))
	tr.must(os.WriteFile(aside(2020), []byte("no database"), 0o600))
	want := []string{aside(2019), aside(2020)}
	for year := 2021; year <= 2026; year++ {
		tr.must(copyFile(f.path, aside(year)))
		if year > 2026-keptAside {
			want = append(want, aside(year))
		}
	}
	there := func() []string {
		found, err := filepath.Glob(f.path + ".aside-*")
		tr.must(err)
		return found
	}
	before := there()

	// The operator has not recorded yet that it has joined, and then has another server in mind.
	recorded := v1alpha1.DatabaseStatus{ClusterID: status.ClusterID, Members: []v1alpha1.DatabaseMember{{Node: "cp-1", Address: "127.0.0.31"}}}
	tr.start(m, recorded)
	tr.untilConnected(m, 1)
	for _, server := range []string{"", "another"} {
		recorded.Members[0].ServerID = server
		seen := *recorded.DeepCopy()
		for range 3 { // one is taken at a time, and one waits: that the third waits says that the first was followed
			m.clusters <- &v1alpha1.OVNCluster{Status: v1alpha1.OVNClusterStatus{Southbound: seen}}
		}
		if got := there(); !slices.Equal(got, before) {
			t.Fatalf("with server %q recorded there are %q", server, got)
		}
	}
	recorded.Members[0].ServerID = status.ServerID
	m.clusters <- &v1alpha1.OVNCluster{Status: v1alpha1.OVNClusterStatus{Southbound: recorded}}
	supervisortest.Eventually(t, "old files are gone", func() error {
		if got := there(); !slices.Equal(got, want) {
			return fmt.Errorf("there are %q", got)
		}
		return nil
	})
}

func copyFile(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	target, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, source.Close(), target.Close())
}
