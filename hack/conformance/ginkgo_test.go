// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kiln-net/kiln/hack/lab/progress"
)

func TestEveryTestThatEndedIsTold(t *testing.T) {
	var out bytes.Buffer
	c := conformance{report: progress.New(&out)}
	for _, update := range []string{
		`{"msg":"Test Suite starting","total":47,"completed":0,"skipped":0,"failed":0}`,
		`{"msg":"PASSED [sig-network] DNS","total":0,"completed":1,"skipped":9,"failed":0}`,
		`{"msg":"FAILED [sig-network] Proxy","total":0,"completed":1,"skipped":9,"failed":1,"failures":["[sig-network] Proxy"]}`,
	} {
		c.progress().ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("POST", "/", strings.NewReader(update)))
	}
	if want := "  ok  [sig-network] DNS\nFAIL  [sig-network] Proxy\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}
