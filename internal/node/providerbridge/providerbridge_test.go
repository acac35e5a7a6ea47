// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package providerbridge

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestRequestsAndResultsSurviveTheDatabase(t *testing.T) {
	request := Request{
		Interface: "eth1", NodeInterface: NodeInterfaceAll, Attempt: "5e0c/3",
		Peers: []netip.Addr{netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2")},
	}
	result := Result{
		State: StateFailed, Reason: ReasonRolledBack, Message: `"quoted"`, Interface: "eth1", Attempt: "5e0c/3", MTU: 1500, Moved: 2,
		Time: time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC),
	}
	row := map[string]string{
		RequestKey("net1"): request.Format(), ResultKey("net1"): result.Format(), "system-id": "node-1",
		"kiln-uplink": "{}", ResultKey("net2"): "not JSON",
	}
	requests, malformed := Requests(row)
	equateAddr := cmpopts.EquateComparable(netip.Addr{})
	if diff := cmp.Diff(map[string]Request{"net1": request}, requests, equateAddr); diff != "" || len(malformed) > 0 {
		t.Error(diff, malformed)
	}
	if diff := cmp.Diff(map[string]Result{"net1": result}, Results(row)); diff != "" {
		t.Error(diff)
	}
	if !result.Answers(request) || result.Answers(Request{Interface: "eth1", Attempt: "5e0c/4"}) || result.Answers(Request{Interface: "eth2", Attempt: "5e0c/3"}) {
		t.Error("a result does not answer the request that it is of, or answers another")
	}
}

func TestOneMalformedRequestLeavesTheOthers(t *testing.T) {
	for _, c := range []struct{ name, provider, value, problem string }{
		{"text that is not JSON", "net2", "{", "decode external_ids:kiln-provider/net2"},
		{"a long name", "provider-net1", `{"interface":"eth2"}`, "more than 12 bytes"},
		{"no name", "", `{"interface":"eth2"}`, "more than 12 bytes"},
		{"a name that ends an entry of ovn-bridge-mappings", "a,b:br-int", `{"interface":"eth2"}`, "cannot have"},
		{"no interface", "net2", `{}`, `interface "" of provider network net2`},
		{"a path as interface", "net2", `{"interface":"../eth2"}`, "is not a name of an interface"},
		{"a control character", "net2", `{"interface":"eth\n2"}`, "is not a name of an interface"},
		{"too many peers", "net2", `{"interface":"eth2","peers":[` + strings.Repeat(`"192.0.2.1",`, MaxPeers) + `"192.0.2.1"]}`, "more than 8"},
		{"a peer that is not an address", "net2", `{"interface":"eth2","peers":["node-2"]}`, "decode"},
	} {
		t.Run(c.name, func(t *testing.T) {
			requests, malformed := Requests(map[string]string{RequestKey("net1"): `{"interface":"eth1"}`, RequestKey(c.provider): c.value})
			if got := slices.Collect(maps.Keys(requests)); !slices.Equal(got, []string{"net1"}) {
				t.Errorf("requests of %q", got)
			}
			if err := malformed[c.provider]; err == nil || !strings.Contains(err.Error(), c.problem) {
				t.Errorf("%v, want %q", err, c.problem)
			}
		})
	}
}

func TestChangesLeaveOtherKeys(t *testing.T) {
	same, before, after := Request{Interface: "eth1"}, Request{Interface: "eth2", Attempt: "1"}, Request{Interface: "eth2", Attempt: "2"}
	row := map[string]string{
		"system-id": "node-1", RequestKey("same"): same.Format(), RequestKey("changed"): before.Format(), RequestKey("old"): same.Format(),
		ResultKey("old"): Result{}.Format(),
	}
	remove, insert := Changes(row, map[string]Request{"same": same, "changed": after, "new": same})
	want := map[string]string{RequestKey("changed"): after.Format(), RequestKey("new"): same.Format()}
	if diff := cmp.Diff([]string{RequestKey("changed"), RequestKey("old")}, remove) + cmp.Diff(want, insert); diff != "" {
		t.Error(diff)
	}
}
