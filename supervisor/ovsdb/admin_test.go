// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"testing"

	"github.com/kiln-net/kiln/supervisor/adminapi"
)

func TestTheNameOfAServerToKick(t *testing.T) {
	status := adminapi.Status{ServerID: "aaaa-long", Address: "ssl:192.0.2.1:6643", Members: []adminapi.Member{
		{ServerID: "aaaa", Address: "ssl:192.0.2.1:6643"}, {ServerID: "bbbb", Address: "ssl:192.0.2.2:6643"},
		{ServerID: "cccc", Address: "ssl:192.0.2.3:6643"}, {ServerID: "dddd", Address: "ssl:192.0.2.3:6643"}, // joined again
		{ServerID: "eeee", Address: "ssl:192.0.2.1:6643"},
	}}
	for server, want := range map[string]string{
		"ssl:192.0.2.2:6643": "ssl:192.0.2.2:6643", "bbbb-long": "ssl:192.0.2.2:6643", "cccc": "cccc", "dddd": "dddd", "eeee": "eeee",
		"ssl:192.0.2.3:6643": "", "aaaa": "", "ffff": "", "": "",
	} {
		if got, err := toKick(status, server); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v; want %q", server, got, err, want)
		}
	}
}
