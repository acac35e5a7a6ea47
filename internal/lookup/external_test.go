// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lookup

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/validation"
)

func TestPortsWaitForFormerTranslations(t *testing.T) {
	nodes := []string{"n1"}
	releasing := map[string]kubeovnv1.OvnEipRelease{
		"floating":       {Rule: "floating", Address: "192.0.2.9", Nodes: nodes},
		"port":           {Rule: "port", Address: "192.0.2.9", Protocol: "tcp", Port: 80, Nodes: nodes},
		"other port":     {Rule: "other port", Address: "192.0.2.9", Protocol: "tcp", Port: 81, Nodes: nodes},
		"other protocol": {Rule: "other protocol", Address: "192.0.2.9", Protocol: "udp", Port: 80, Nodes: nodes},
		"source":         {Rule: "source", Address: "192.0.2.9", Source: true, Nodes: nodes},
		"other address":  {Rule: "other address", Address: "192.0.2.10", Nodes: nodes},
		"reported":       {Rule: "reported", Address: "192.0.2.9", Absent: nodes},
	}
	for front, want := range map[validation.Front][]string{
		{Protocol: corev1.ProtocolTCP, Port: 80}:  {"floating", "port"},
		{Protocol: corev1.ProtocolTCP, Port: 81}:  {"floating", "other port"},
		{Protocol: corev1.ProtocolUDP, Port: 80}:  {"floating", "other protocol"},
		{Protocol: corev1.ProtocolSCTP, Port: 80}: {"floating"},
	} {
		var got []string
		for _, release := range Contradicting(releasing, netip.MustParseAddr("192.0.2.9"), front) {
			got = append(got, release.Rule)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s waits for %q, want %q", front, got, want)
		}
	}
}
