// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package apiserver runs a real API server for tests.
package apiserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/kiln-net/kiln/internal/testing/prepared"
)

// patience is how long an API server may take to start, to establish our kinds, and to stop.
const patience = 2 * time.Minute

// Server is an API server with its etcd.
type Server struct {
	envtest.Environment
	// programs is the directory of the wrapper scripts.
	programs string
	// stopped is closed by Stop.
	stopped chan struct{}
}

// NoKinds is the argument of New for a server without our kinds.
const NoKinds = "none"

// New returns an API server that is not started. It has all our kinds, or only the named ones, such as `subnets` or
// `router-lb-rules`.
func New(kinds ...string) (*Server, error) {
	server, err := prepared.File("bin/kube-apiserver")
	if err != nil {
		return nil, err
	}
	bases, err := definitions()
	if err != nil {
		return nil, err
	}
	paths := []string{bases}
	if len(kinds) > 0 {
		paths = nil
	}
	for _, kind := range kinds {
		if kind == NoKinds {
			continue
		}
		paths = append(paths, filepath.Join(bases, "kubeovn.io_"+kind+".yaml"))
	}
	return &Server{Environment: envtest.Environment{
		BinaryAssetsDirectory: filepath.Dir(server), CRDDirectoryPaths: paths, ErrorIfCRDPathMissing: true,
		// Several servers start at once when packages are tested: the default of 20 seconds is too short for a busy machine.
		ControlPlaneStartTimeout: patience, ControlPlaneStopTimeout: patience,
		CRDInstallOptions: envtest.CRDInstallOptions{MaxTime: patience}, // the default is ten seconds
	}}, nil
}

// Start starts the server. If it fails, it cleans up. Envtest gives the server only five seconds to create the namespace
// default, however busy the machine is. After that timeout, Start repeats the remaining steps as for an existing cluster.
//
// The programs are started by a thread that lives until Stop: the kernel kills them when the thread that started them ends (PR_SET_PDEATHSIG(2const)),
// and the Go runtime ends a thread with a goroutine that has locked it, for example for a network namespace.
func (s *Server) Start() (config *rest.Config, err error) {
	started := make(chan struct{})
	stopped := make(chan struct{})
	s.stopped = stopped
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		config, err = s.start()
		close(started)
		<-stopped
	}()
	<-started
	return config, err
}

func (s *Server) start() (*rest.Config, error) {
	if err := s.wrap("kube-apiserver", "etcd"); err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.programs))
	}
	config, err := s.Environment.Start()
	for end := time.Now().Add(patience); errors.Is(err, context.DeadlineExceeded) && s.Config != nil && time.Now().Before(end); {
		s.UseExistingCluster = new(true)
		config, err = s.Environment.Start()
		s.UseExistingCluster = nil
	}
	if err != nil {
		return nil, errors.Join(err, s.stop())
	}
	config.QPS = -1 // clients of tests do not wait
	return config, nil
}

// Stop stops the server and removes its files.
func (s *Server) Stop() error {
	if s.stopped != nil {
		defer close(s.stopped) // evaluated now
		s.stopped = nil
	}
	return s.stop()
}

func (s *Server) stop() error { return errors.Join(s.Environment.Stop(), os.RemoveAll(s.programs)) }

// wrap makes envtest start programs through scripts that make the kernel kill them when this process ends. `go test -fuzz` kills
// its workers: their programs would otherwise run forever, and go test would wait for them, because they inherit its pipes.
func (s *Server) wrap(names ...string) (err error) {
	if s.programs, err = os.MkdirTemp("", "apiserver"); err != nil {
		return fmt.Errorf("make a directory for wrapper scripts: %w", err)
	}
	for _, name := range names {
		program, err := prepared.File(filepath.Join("bin", name))
		if err != nil {
			return err
		}
		wrapper := filepath.Join(s.programs, name)
		script := "#!/bin/sh\nexec setpriv --pdeathsig KILL '" + program + "' \"$@\"\n"
		if err := os.WriteFile(wrapper, []byte(script), 0o755); err != nil {
			return fmt.Errorf("write a wrapper of %s: %w", name, err)
		}
		// Envtest looks there first (see its documentation of TEST_ASSET_ETCD and TEST_ASSET_KUBE_APISERVER).
		variable := "TEST_ASSET_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
		if err := os.Setenv(variable, wrapper); err != nil {
			return fmt.Errorf("set %s: %w", variable, err)
		}
	}
	return nil
}

// definitions returns the directory of our CRDs, independent of the package under test.
func definitions() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the definitions: %w", err)
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, "config", "crd", "bases"), nil
		}
	}
	return "", errors.New("find the definitions: this is not the repository")
}

// StartFor starts an API server with kinds, as New, for a test and stops it when the test ends.
func StartFor(t testing.TB, kinds ...string) *Server {
	t.Helper()
	server, err := New(kinds...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := server.Start(); err != nil {
		t.Fatalf("start an API server: %v", err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Errorf("stop the API server: %v", err)
		}
	})
	return server
}

// Run starts the server for the tests of a package, calls f, and stops the server. It returns the exit code: the one of f, or 1 after an error, which
// it prints.
func (s *Server) Run(f func(config *rest.Config) int) int {
	config, err := s.Start()
	if err != nil {
		fmt.Fprintln(os.Stderr, "start the API server:", err)
		return 1
	}
	code := f(config)
	if err := s.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stop the API server:", err)
		return 1
	}
	return code
}
