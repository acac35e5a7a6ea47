// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package reconciler_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/reconciler"
)

// starting is a controller behind an open gate whose queue has keys at the start.
type starting struct {
	t     *testing.T
	gate  *reconciler.StartGate
	queue k8s.Queue

	mu        sync.Mutex
	calls     map[string]int
	succeeded map[string]int
}

// start runs the controller with two workers until the test ends. It calls attempt with the name of a key and the number of
// earlier calls for it.
func start(t *testing.T, attempt func(s *starting, name string, calls int) error, names ...string) *starting {
	t.Helper()
	s := &starting{t: t, gate: reconciler.NewStartGate(), calls: map[string]int{}, succeeded: map[string]int{}}
	s.gate.Open()
	options := s.gate.Workers(2)
	options.SkipNameValidation = new(true)
	options.Reconciler = s.gate.Reconciler(reconcile.Func(func(_ context.Context, req reconcile.Request) (reconcile.Result, error) {
		s.mu.Lock()
		calls := s.calls[req.Name]
		s.calls[req.Name]++
		s.mu.Unlock()
		if err := attempt(s, req.Name, calls); err != nil {
			return reconcile.Result{}, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.succeeded[req.Name]++
		return reconcile.Result{}, nil
	}))
	c, err := controller.NewUnmanaged("starting", options)
	if err != nil {
		t.Fatal(err)
	}
	err = c.Watch(source.Func(func(_ context.Context, q k8s.Queue) error {
		s.queue = q
		for _, name := range names {
			q.Add(k8s.Request(name))
		}
		return nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := c.Start(ctx); err != nil {
			t.Errorf("controller: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	return s
}

// written waits until WaitWritten returns.
func (s *starting) written() (failing int) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	failing, err := s.gate.WaitWritten(ctx, time.Millisecond)
	if err != nil {
		s.t.Fatalf("the start is not written: %v", err)
	}
	return failing
}

func (s *starting) needSuccess(names ...string) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		if s.succeeded[name] == 0 {
			s.t.Errorf("the start was reported as written before key %s was", name)
		}
	}
}

func TestConstantChangesDoNotHoldUpTheStart(t *testing.T) {
	for name, woken := range map[string]func(name string, calls int) string{
		"a key wakes itself":      func(name string, _ int) string { return name },
		"new keys come all along": func(name string, calls int) string { return fmt.Sprintf("%s%d", name, calls) },
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, func(s *starting, name string, calls int) error {
				time.Sleep(100 * time.Microsecond)
				s.queue.Add(k8s.Request(woken(name, calls)))
				return nil
			}, "a", "b", "c")
			s.written()
			s.needSuccess("a", "b", "c")
		})
	}
}

func TestTheStartIsWrittenOnceEachKeyIs(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "subnets"}, "a", errors.New("stale"))
	release := make(chan struct{})
	s := start(t, func(s *starting, name string, calls int) error {
		switch {
		case name == "slow":
			<-release
		case name == "failing" && calls < 5:
			return errors.New("broken")
		case name == "conflicting" && calls < 3:
			return conflict
		case name == "vpc":
			s.queue.Add(k8s.Request("subnet"))
		case name == "subnet":
			s.queue.Add(k8s.Request("pod"))
		}
		return nil
	}, "fast", "slow", "failing", "conflicting", "vpc")
	done := make(chan struct{})
	go func() {
		defer close(done)
		if failing := s.written(); failing > 0 {
			t.Errorf("%d keys are reported as failing", failing)
		}
	}()
	select {
	case <-done:
		t.Error("the start was reported as written while a key was worked on")
	case <-time.After(500 * time.Millisecond):
	}
	close(release)
	<-done
	s.needSuccess("fast", "slow", "failing", "conflicting", "vpc", "subnet", "pod")
}

func TestAKeyThatAlwaysFailsDoesNotHoldUpTheStart(t *testing.T) {
	s := start(t, func(_ *starting, name string, _ int) error {
		if name == "bad" {
			return errors.New("broken")
		}
		return nil
	}, "bad", "good")
	if failing := s.written(); failing != 1 {
		t.Errorf("%d keys are reported as failing, want the bad one", failing)
	}
	s.needSuccess("good")
	if s.mu.Lock(); s.calls["bad"] < 10 {
		t.Errorf("given up after %d attempts", s.calls["bad"])
	}
	s.mu.Unlock()
}

func TestTheStartIsNotWrittenBeforeControllersWork(t *testing.T) {
	gate := reconciler.NewStartGate()
	gate.Workers(1)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := gate.WaitWritten(ctx, time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a controller has not started: %v", err)
	}
}
