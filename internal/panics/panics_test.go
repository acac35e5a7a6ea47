// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package panics

import (
	"bytes"
	"context"
	"log"
	"strings"
	"testing"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// TestPanicsFailThePackage has a reconciler of controller-runtime panic.
func TestPanicsFailThePackage(t *testing.T) {
	Record()
	t.Cleanup(func() { seen = nil })
	c, err := controller.NewTypedUnmanaged("panics", controller.Options{Reconciler: reconcile.Func(func(context.Context, ctrl.Request) (ctrl.Result, error) {
		panic("a defect")
	})})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Reconcile(t.Context(), ctrl.Request{}); err == nil {
		t.Error("the panic was not recovered")
	}
	out := &bytes.Buffer{}
	if code := codeOf(out, 0); code != 1 || !strings.Contains(out.String(), "a defect") {
		t.Errorf("code %d: %s", code, out)
	}
}

func TestLogsOfHandlersAreScanned(t *testing.T) {
	Record()
	t.Cleanup(func() { seen = nil })
	if code := codeOf(&bytes.Buffer{}, 0); code != 0 {
		t.Fatalf("code %d before a panic", code)
	}
	log.Print("http: panic serving 127.0.0.1:1: a defect")
	if code := codeOf(&bytes.Buffer{}, 0); code != 1 {
		t.Errorf("code %d", code)
	}
}

func TestLinesThatReportAPanic(t *testing.T) {
	for line, want := range map[string]bool{
		`E1122 12:45:04.524718 1 panic.go:262] "Observed a panic" panic="a defect"`:       true,
		"panic: runtime error: index out of range [1] with length 1":                      true,
		"2026-11-22T12:00:00Z|00001|ovs|EMER|lib/x.c:1: assertion failed: a in f()":       true,
		"2026-11-22T12:00:00Z\tINFO\tstarted\t{\"daemon\": \"ovsdb-server\", \"pid\": 1}": false,
		"the reason is not to panic": false,
	} {
		if got := len(In(line)) == 1; got != want {
			t.Errorf("%v, want %v: %s", got, want, line)
		}
	}
}
