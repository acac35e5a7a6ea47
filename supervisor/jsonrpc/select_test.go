// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package jsonrpc

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestColumnsAreDecoded(t *testing.T) {
	type row struct {
		UUID   UUID         `json:"_uuid"`
		Ports  Set[UUID]    `json:"ports"`
		One    Set[UUID]    `json:"one"`
		MTU    Set[float64] `json:"mtu"`
		None   Set[string]  `json:"none"`
		Counts Map[float64] `json:"counts"`
		Empty  Map[string]  `json:"empty"`
	}
	var got row
	err := json.Unmarshal([]byte(`{"_uuid":["uuid","a"],"ports":["set",[["uuid","b"],["uuid","c"]]],"one":["uuid","d"],"mtu":1500,"none":["set",[]],
		"counts":["map",[["rx",1],["tx",2]]],"empty":["map",[]]}`), &got)
	if err != nil {
		t.Fatal(err)
	}
	want := row{UUID: "a", Ports: Set[UUID]{"b", "c"}, One: Set[UUID]{"d"}, MTU: Set[float64]{1500}, None: Set[string]{}, Counts: Map[float64]{"rx": 1, "tx": 2}, Empty: Map[string]{}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got.MTU.First() != 1500 || got.None.First() != "" {
		t.Errorf("first values %v and %q", got.MTU.First(), got.None.First())
	}
}

func TestOtherColumnsAreErrors(t *testing.T) {
	for text, into := range map[string]any{`"a"`: new(Map[string]), `["map",[["k"]]]`: new(Map[float64]), `["map",[["k","v"]]]`: new(Map[float64]), `"a" `: new(UUID), `["set",["x"]]`: new(Set[float64])} {
		if err := json.Unmarshal([]byte(text), into); err == nil {
			t.Errorf("%s is decoded as %v", text, into)
		}
	}
}
