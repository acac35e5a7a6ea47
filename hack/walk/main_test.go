// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

func TestWalkGoesThroughClosuresAndInterfaces(t *testing.T) {
	const sample = "hack/walk/testdata/sample"
	p, err := load("./testdata/sample/...")
	if err != nil {
		t.Fatal(err)
	}
	way, all, err := p.walk(sample+".Job.Run", sample+"/deep.Store.Apply")
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(slices.Sorted(maps.Keys(way[sample+"/sample.go"])), " ")
	if want := sample + ".Job.Run " + sample + ".commit"; got != want {
		t.Errorf("on the way are %s, want %s", got, want)
	}
	if got, want := all.String(), "5 functions in 2 files"; got != want {
		t.Errorf("all: %s, want %s", got, want)
	}
	if _, _, err := p.walk(sample+"/deep.Count", sample+".Job.Run"); err == nil {
		t.Error("a way back was found")
	}
	if _, _, err := p.walk(sample+".None", sample+".Job.Run"); err == nil {
		t.Error("a function that does not exist was found")
	}
}
