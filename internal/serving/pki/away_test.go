// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"testing"
	"time"
)

// TestAnAuthorityThatWasNotAdvancedForLong skips Advance from any moment of a CA's lifetime until any later one. At the end
// there must be a CA that signs. As long as the previous CA is valid, no client may see a certificate of a CA that is not in its
// bundle.
func TestAnAuthorityThatWasNotAdvancedForLong(t *testing.T) {
	const month = 30 * 24 * time.Hour
	p := Profile{CommonName: "ovn-northd"}
	for left := 0; left <= 9*12; left += 12 {
		for away := 1; away <= 25*12; away += 5 {
			a := newTestAuthority(t)
			at := start
			for ; at.Before(start.Add(time.Duration(left) * month)); at = at.Add(month) {
				advance(t, a, at)
			}
			advance(t, a, at)
			bundle, before := a.Bundle(), a.current.certificate
			back := at.Add(time.Duration(away) * month)
			advance(t, a, back)
			if end := a.current.certificate.NotAfter; !back.Before(end) {
				t.Fatalf("left after %d months, back after %d more: the signer expired at %s", left, away, end)
			}
			signer := a.current.certificate
			advance(t, a, back)
			if !a.current.certificate.Equal(signer) {
				t.Fatalf("left after %d months, back after %d more: there was another step to take", left, away)
			}
			if change := a.NextChange(back); !change.After(back) {
				t.Fatalf("left after %d months, back after %d more: nothing is to change ever (%s)", left, away, change)
			}
			if back.Before(before.NotAfter) {
				trusts(t, bundle, issue(t, a, p, back), back, "the bundle of when the operator left")
			}
			later := back.Add(settle)
			heard := a.Bundle()
			advance(t, a, later)
			trusts(t, heard, issue(t, a, p, later), later, "the bundle of when it was back")
		}
	}
}

func advance(t *testing.T, a *Authority, now time.Time) {
	t.Helper()
	if err := a.Advance(Rotation{}, now); err != nil {
		t.Fatal(err)
	}
}
