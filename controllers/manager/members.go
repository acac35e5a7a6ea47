// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/client-go/rest"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/ovncluster"
	ovsdbclient "github.com/kiln-net/kiln/internal/ovsdb/client"
	"github.com/kiln-net/kiln/internal/serving/tlsdir"
)

const (
	// northboundName is the DNS name in the certificates of the northbound servers.
	northboundName = "ovn-nb"
	// northboundPort is the servers' port for clients.
	northboundPort = 6641
)

// members follows the addresses of the northbound database in the OVNCluster's status.
type members struct {
	clusters <-chan *v1alpha1.OVNCluster
	// clusterID is the database's cluster ID in the newest status.
	clusterID string
}

func watchMembers(ctx context.Context, config *rest.Config, observe func(*v1alpha1.OVNCluster)) (*members, error) {
	clusters, err := ovncluster.Watch(ctx, config, observe)
	if err != nil {
		return nil, fmt.Errorf("find the northbound database: %w", err)
	}
	return &members{clusters: clusters}, nil
}

// errAnotherDatabase ends the process, because its in-memory state belongs to a database that no longer exists.
var errAnotherDatabase = errors.New("the northbound database was re-created")

// next waits until the addresses differ from the known ones and returns them. It ignores an empty list, which means that the operator has
// no information. A changed cluster ID is an error.
func (m *members) next(ctx context.Context, known []string) ([]string, error) {
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case cluster := <-m.clusters:
			endpoints := ovncluster.Endpoints(cluster.Status.Northbound, northboundPort)
			if id := cluster.Status.Northbound.ClusterID; id != "" {
				if m.clusterID != "" && m.clusterID != id {
					return nil, errAnotherDatabase
				}
				m.clusterID = id
			}
			if len(endpoints) > 0 && !slices.Equal(endpoints, known) {
				return endpoints, nil
			}
		}
	}
}

// follow calls set with every change of the addresses. It returns nil when ctx ends, and an error if the cluster ID changes.
func (m *members) follow(ctx context.Context, set func([]string)) error {
	var known []string
	for {
		endpoints, err := m.next(ctx, known)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		known = endpoints
		set(endpoints)
	}
}

// connect waits for a session without a time limit. If the addresses change meanwhile, it restarts with the new ones.
func (p *process) connect(ctx context.Context, m *members) (*ovsdbclient.Session, error) {
	config, err := tlsdir.Client(p.options.TLSDirectory, northboundName)
	if err != nil {
		return nil, fmt.Errorf("load the certificate for the northbound database: %w", err)
	}
	p.log.Info("waiting for the OVNCluster to name the members of the northbound database")
	endpoints, err := m.next(ctx, nil)
	if err != nil {
		return nil, err
	}
	for {
		p.log.Info("connecting to the northbound database", "endpoints", endpoints)
		options := ovsdbclient.Options{Endpoints: endpoints, TLS: config, Log: p.log.WithName("ovsdb")}
		session, others, err := m.dial(ctx, options)
		if session != nil || others == nil {
			return session, err
		}
		endpoints = others
	}
}

// dial tries to connect until the addresses change, and then returns the new ones.
func (m *members) dial(ctx context.Context, o ovsdbclient.Options) (session *ovsdbclient.Session, others []string, err error) {
	attempt, stop := context.WithCancel(ctx)
	defer stop()
	type change struct {
		others []string
		err    error
	}
	changed := make(chan change, 1)
	go func() {
		others, err := m.next(attempt, o.Endpoints)
		if !errors.Is(err, context.Canceled) {
			stop()
		}
		changed <- change{others, err}
	}()
	session, err = ovsdbclient.Northbound(attempt, o)
	stop()
	news := <-changed
	if others = news.others; session != nil && others != nil {
		session.SetEndpoints(others)
	}
	if errors.Is(news.err, errAnotherDatabase) {
		if session != nil {
			session.Close()
		}
		return nil, nil, news.err
	}
	if err != nil {
		return nil, others, fmt.Errorf("connect to the northbound database: %w", err)
	}
	return session, others, nil
}
