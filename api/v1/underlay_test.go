// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"fmt"
	"strings"
	"testing"
)

func TestSilentGatewaysOfANodeAreBounded(t *testing.T) {
	annotations := map[string]string{"unrelated": "lab/10.30.0.254"}
	for key := range 5 {
		var gateways []string
		for i := range 60 {
			gateways = append(gateways, fmt.Sprintf("subnet-%d/10.30.%d.254,text", i, i))
		}
		annotations[ProviderKey(fmt.Sprintf("net%d", key), ProviderSilentGateways)] = strings.Join(gateways, ",")
	}
	got := SilentGateways(annotations)
	if len(got) != maxSilentGateways {
		t.Fatalf("a node reports %d gateways, want %d", len(got), maxSilentGateways)
	}
	if last := fmt.Sprint(got[0], got[maxSilentGateways-1]); last != "{net0 subnet-0 10.30.0.254} {net1 subnet-39 10.30.39.254}" {
		t.Errorf("the first and the last one are %s", last)
	}
}
