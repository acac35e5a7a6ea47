// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"testing"

	"github.com/kiln-net/kiln/supervisor/jsonrpc"
)

func TestSumsOfInterfacesNeverDecrease(t *testing.T) {
	pod := func(uuid string, bytes float64) interfaceRow {
		return interfaceRow{UUID: jsonrpc.UUID(uuid), ExternalIDs: map[string]string{"pod_name": uuid}, Statistics: map[string]float64{"rx_bytes": bytes}}
	}
	tunnel := interfaceRow{UUID: "t", Type: "geneve", Statistics: map[string]float64{"rx_bytes": 7}}
	bridge := interfaceRow{UUID: "b", Type: "internal", Statistics: map[string]float64{"rx_bytes": 1000}}
	var s sums
	for _, step := range []struct {
		name string
		rows []interfaceRow
		want float64
	}{
		{"at first, all that was counted", []interfaceRow{pod("a", 100), pod("b", 50), tunnel, bridge}, 150},
		{"then the difference", []interfaceRow{pod("a", 130), pod("b", 50), tunnel}, 180},
		{"without a deleted pod", []interfaceRow{pod("b", 60), tunnel}, 190},
		{"with a new pod", []interfaceRow{pod("b", 60), pod("c", 5), tunnel}, 195},
		{"with a counter that starts again", []interfaceRow{pod("b", 10), pod("c", 5), tunnel}, 205},
	} {
		if got := s.add(step.rows, interfaceRow.sum)[podsSum]["rx_bytes"]; got != step.want {
			t.Errorf("%s: %v, want %v", step.name, got, step.want)
		}
	}
	if got := s.total[tunnelsSum]["rx_bytes"]; got != 7 {
		t.Errorf("tunnels: %v", got)
	}
}
