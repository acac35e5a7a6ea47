// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestConnectionFlushesAreReadAsTheyAreWritten(t *testing.T) {
	requests := []ConnectionFlush{
		{ID: "a-1", Address: netip.MustParseAddr("192.0.2.9"), Internal: netip.MustParsePrefix("10.50.0.5/32")},
		{ID: "b-2", Address: netip.MustParseAddr("2001:db8::9"), Internal: netip.MustParsePrefix("fd00:50::/112"), Source: true},
		{ID: "c-3", Address: netip.MustParseAddr("192.0.2.10"), Internal: netip.MustParsePrefix("10.50.0.6/32"), Protocol: "tcp", Port: 80},
	}
	text, err := FormatConnectionFlushes(requests)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseConnectionFlushes(text)
	if err != nil || !slices.Equal(got, requests) {
		t.Errorf("%s is read as %v, %v", text, got, err)
	}
	if text, err := FormatConnectionFlushes(nil); text != "" || err != nil {
		t.Errorf("no requests are %q, %v", text, err)
	}
	if got := FlushedConnections("a-1,,b-2"); !slices.Equal(got, []string{"a-1", "b-2"}) {
		t.Errorf("IDs %q", got)
	}
	if got := FlushedConnections(strings.Repeat("a,", MaxConnectionFlushes*maxFlushID)); len(got) != 0 {
		t.Errorf("an annotation that no agent writes has %d IDs", len(got))
	}
}

func TestInvalidConnectionFlushesAreSkipped(t *testing.T) {
	const good = `{"id":"g","address":"192.0.2.9","internal":"10.0.0.5/32"}`
	for name, text := range map[string]string{
		"no ID":                     `[{"address":"192.0.2.9","internal":"10.0.0.5/32"},` + good + `]`,
		"an ID with a comma":        `[{"id":"a,b","address":"192.0.2.9","internal":"10.0.0.5/32"},` + good + `]`,
		"a long ID":                 `[{"id":"` + strings.Repeat("a", 65) + `","address":"192.0.2.9","internal":"10.0.0.5/32"},` + good + `]`,
		"no address":                `[{"id":"a","internal":"10.0.0.5/32"},` + good + `]`,
		"an address with a zone":    `[{"id":"a","address":"fe80::1%eth0","internal":"fd00::5/128"},` + good + `]`,
		"two families":              `[{"id":"a","address":"192.0.2.9","internal":"fd00::5/128"},` + good + `]`,
		"a port without a protocol": `[{"id":"a","address":"192.0.2.9","internal":"10.0.0.5/32","port":80},` + good + `]`,
		"an unknown protocol":       `[{"id":"a","address":"192.0.2.9","internal":"10.0.0.5/32","protocol":"icmp","port":80},` + good + `]`,
	} {
		got, err := ParseConnectionFlushes(text)
		if len(got) != 1 || got[0].ID != "g" || err == nil {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	for name, text := range map[string]string{"no JSON": "x", "too many": "[" + strings.Repeat(good+",", MaxConnectionFlushes) + good + "]"} {
		if got, err := ParseConnectionFlushes(text); len(got) != 0 || err == nil {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if got, err := ParseConnectionFlushes(""); len(got) != 0 || err != nil {
		t.Errorf("no annotation: %v, %v", got, err)
	}
}
