// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

func TestCompareRunsTakesRatiosPairByPair(t *testing.T) {
	run := func(rate, other float64) []row {
		return []row{{Scenario: "burst", Metric: "rate", Value: rate}, {Scenario: "burst", Metric: "other", Value: other}}
	}
	got := compareRuns([][]row{run(100, 0), run(50, 0), run(80, 0)}, [][]row{run(200, 1), run(150, 1), run(80, 1)[:1]})
	want := []comparison{{Scenario: "burst", Metric: "rate", Old: 80, New: 150, Ratio: 2, Least: 1, Greatest: 3}}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestPercentileIsTheSmallestThatSoManyDoNotExceed(t *testing.T) {
	var sorted []time.Duration
	for i := range 200 {
		sorted = append(sorted, time.Duration(i+1))
	}
	for percent, want := range map[int]time.Duration{50: 100, 99: 198, 100: 200} {
		if got := percentile(sorted, percent); got != want {
			t.Errorf("p%d is %d, want %d", percent, got, want)
		}
	}
	if got := percentile(sorted[:1], 50); got != 1 {
		t.Errorf("p50 of one value is %d", got)
	}
}

func TestCommitLogDistinguishesNorthdsAndSurvivesCompaction(t *testing.T) {
	schema, northd, ours := `{"name":"OVN_Northbound"}`+"\n", `{"_date":1,"_comment":"ovn-northd"}`+"\n", `{"_date":2}`+"\n"
	path := filepath.Join(t.TempDir(), "nb.db")
	write := func(name, more string, records ...string) {
		t.Helper()
		var file []byte
		for _, record := range records {
			file = append(file, "OVSDB JSON "...)
			file = append(file, []byte(strconv.Itoa(len(record))+" 0123\n"+record)...)
		}
		if err := os.WriteFile(name, append(file, more...), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	commits := newCommitLog(path)
	expect := func(want transactions) {
		t.Helper()
		if got, err := commits.transactions(); err != nil || got != want {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
	write(path, "OVSDB JSON 100 0123\n{\"_da", schema, northd, ours, ours)
	expect(transactions{CMS: 2, Northd: 1, NorthdBytes: len(northd)})
	write(path, "", schema, northd, ours, ours, ours)
	expect(transactions{CMS: 3, Northd: 1, NorthdBytes: len(northd)})
	write(path, "", schema, northd, ours, ours, ours, northd) // not read before the file is replaced
	write(path+".tmp", "", schema, `{"all":"of it"}`+"\n", ours)
	if err := os.Rename(path+".tmp", path); err != nil {
		t.Fatal(err)
	}
	expect(transactions{CMS: 4, Northd: 2, NorthdBytes: 2 * len(northd)})
}

func TestAWriteIsCountedSinceTheLastLook(t *testing.T) {
	got := requests{"PATCH pods": 7, "POST ips": 3, "POST events": 1}.since(requests{"PATCH pods": 5, "POST events": 1})
	if got.total() != 5 || got["PATCH pods"] != 2 || got["POST ips"] != 3 {
		t.Errorf("got %v", got)
	}
}

func TestFlagsOfTheOldRevisionAreForItsRunsOnly(t *testing.T) {
	o, err := parse([]string{"-old", "a", "-new", "b", "-n", "7", "-old-flags", "-admission-policies=false -port-security Requested"})
	if err != nil {
		t.Fatal(err)
	}
	old, err := o.ofOld()
	if err != nil {
		t.Fatal(err)
	}
	if !o.admission || o.portSecurity != kubeovnv1.PortSecurityEnforced {
		t.Errorf("the new revision has policies %t, port security %s", o.admission, o.portSecurity)
	}
	if old.admission || old.portSecurity != kubeovnv1.PortSecurityRequested || !slices.Equal(old.sizes, []int{7}) {
		t.Errorf("the old revision has policies %t, port security %s, bursts of %v", old.admission, old.portSecurity, old.sizes)
	}
}

func TestAnotherSystemIsAClusterAdministratorWithoutPolicies(t *testing.T) {
	for _, args := range [][]string{{"-system", "other"}, {"-cluster-admin"}} {
		o, err := parse(args)
		if err != nil {
			t.Fatal(err)
		}
		if m := machineOf(o); m.Policies != "off" || m.Account != "a cluster administrator" {
			t.Errorf("%v: policies %s, account %s", args, m.Policies, m.Account)
		}
	}
}
