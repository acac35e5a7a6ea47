// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/ovncluster"
	"github.com/kiln-net/kiln/internal/serving/scrape"
)

// component is what differs between processes in how they follow the OVNCluster while they run.
type component struct {
	// verbosity returns the verbosity of the process's log.
	verbosity func(*v1alpha1.OVNClusterSpec) int32
	// daemons sets the levels of the daemons that the process supervises; nil if there are none.
	daemons func(v1alpha1.Logging)
	// profilingPort is the port of profiles: the port of /healthz plus profilingOffset.
	profilingPort int
	// access is to the process's metrics; nil if it serves none.
	access *scrape.Access
}

// newAccess returns the access to the metrics of a process that serves them, without TLS, on a port.
func newAccess(port int) *scrape.Access {
	return &scrape.Access{Port: port + scrape.PortOffset, Config: ctrl.GetConfig, Log: ctrl.Log}
}

func centralVerbosity(s *v1alpha1.OVNClusterSpec) int32 { return s.Central.LogLevel }
func agentVerbosity(s *v1alpha1.OVNClusterSpec) int32   { return s.Agent.LogLevel }

// observer sets the logger of the process and returns a function that applies each state of the OVNCluster to it: levels and format of
// logs, whether profiles are served, and who may read metrics. The function does not block. Profiles end with ctx.
func (c component) observer(ctx context.Context) (func(*v1alpha1.OVNCluster), error) {
	log, err := setLogger()
	if err != nil {
		return nil, err
	}
	profiles := &profiles{port: c.profilingPort}
	return func(cluster *v1alpha1.OVNCluster) {
		spec := &cluster.Spec
		log.set(c.verbosity(spec), spec.Logging.Format)
		if c.daemons != nil {
			c.daemons(spec.Logging)
		}
		profiles.set(ctx, spec.Debug.Profiling)
		if c.access != nil {
			c.access.Set(ctx, spec.Monitoring.Access)
		}
	}, nil
}

// observe starts to apply the OVNCluster to this process. It is for processes that do not use the OVNCluster otherwise.
func observe(ctx context.Context, kubeconfig *rest.Config, apply func(*v1alpha1.OVNCluster)) error {
	_, err := ovncluster.Watch(ctx, kubeconfig, apply)
	return err
}
