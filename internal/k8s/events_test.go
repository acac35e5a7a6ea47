// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package k8s_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"

	"github.com/kiln-net/kiln/internal/k8s"
)

// TestLongMessagesAreCutToTheLimitOfEvents: the API server refuses events whose notes are longer than 1024 bytes.
func TestLongMessagesAreCutToTheLimitOfEvents(t *testing.T) {
	for name, tt := range map[string]struct{ message, end string }{
		"as long as may be":     {strings.Repeat("a", 1024), "a"},
		"one byte too long":     {strings.Repeat("a", 1025), "a…"},
		"cut in a character":    {strings.Repeat("a", 1020) + "ééé", "a…"},
		"of several problems":   {strings.Repeat("ingress rule 7; ", 1000), "…"},
		"short, not only ASCII": {"é", "é"},
	} {
		recorder := events.NewFakeRecorder(1)
		k8s.Warn(recorder, &corev1.Pod{}, "Reason", tt.message)
		note := strings.TrimPrefix(<-recorder.Events, "Warning Reason ")
		if len(note) > 1024 || !utf8.ValidString(note) || !strings.HasSuffix(note, tt.end) || !strings.HasPrefix(tt.message, strings.TrimSuffix(note, "…")) {
			t.Errorf("%s: a note of %d bytes: %s", name, len(note), note)
		}
	}
}
