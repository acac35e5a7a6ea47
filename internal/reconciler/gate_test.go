// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package reconciler_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kiln-net/kiln/internal/reconciler"
)

func TestNothingIsReconciledBeforeTheGateOpens(t *testing.T) {
	gate := reconciler.NewStartGate()
	calls := 0
	r := gate.Reconciler(reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
		calls++
		return reconcile.Result{}, nil
	}))
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := r.Reconcile(ended, reconcile.Request{}); err != nil || calls != 0 {
		t.Errorf("a process that ended at the gate: error %v, %d calls", err, calls)
	}
	gate.Open()
	gate.Open()
	if _, err := r.Reconcile(t.Context(), reconcile.Request{}); err != nil || calls != 1 {
		t.Errorf("behind the open gate: error %v, %d calls", err, calls)
	}
}

func TestConflictsAreTriedAgainInSilence(t *testing.T) {
	gate := reconciler.NewStartGate()
	gate.Open()
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "subnets"}, "a", errors.New("stale"))
	failure := errors.New("broken")
	for _, tt := range []struct {
		name  string
		err   error
		quiet bool
	}{
		{"a conflict", fmt.Errorf("patch: %w", conflict), true},
		{"any other failure", failure, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := gate.Reconciler(reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
				return reconcile.Result{}, tt.err
			}))
			result, err := r.Reconcile(t.Context(), reconcile.Request{})
			if (err == nil) != tt.quiet || (result.RequeueAfter > 0) != tt.quiet {
				t.Errorf("result %+v, error %v", result, err)
			}
		})
	}
}
