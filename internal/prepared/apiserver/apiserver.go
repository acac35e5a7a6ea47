// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package apiserver has tests run a real API server.
package apiserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/kiln-net/kiln/internal/prepared"
)

// patience is how long an API server may take to start, to learn of our kinds and to stop.
const patience = 2 * time.Minute

// Server is an API server with its etcd.
type Server struct{ envtest.Environment }

// New is an API server that can be started. It has our kinds, or those of them that are named as `subnets` or `router-lb-rules`.
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
		paths = append(paths, filepath.Join(bases, "kubeovn.io_"+kind+".yaml"))
	}
	return &Server{envtest.Environment{
		BinaryAssetsDirectory: filepath.Dir(server), CRDDirectoryPaths: paths, ErrorIfCRDPathMissing: true,
		// Several start at once when packages are tested: 20 seconds, as it is otherwise, are not enough for a busy machine.
		ControlPlaneStartTimeout: patience, ControlPlaneStopTimeout: patience,
		CRDInstallOptions: envtest.CRDInstallOptions{MaxTime: patience}, // of ten seconds
	}}, nil
}

// Start starts it. Where that fails nothing is left. Envtest itself gives the server five seconds to make the namespace default, whatever else
// the machine has to do: what is left of a start that ended there is done as with a cluster that is there.
func (s *Server) Start() (*rest.Config, error) {
	config, err := s.Environment.Start()
	for end := time.Now().Add(patience); errors.Is(err, context.DeadlineExceeded) && s.Config != nil && time.Now().Before(end); {
		s.UseExistingCluster = new(true)
		config, err = s.Environment.Start()
		s.UseExistingCluster = nil
	}
	if err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return config, nil
}

// definitions is the directory of our kinds' definitions, seen from whichever package is tested.
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
