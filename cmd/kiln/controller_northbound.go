// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/client-go/rest"

	"github.com/kiln-net/kiln/api/v1alpha1"
	ovsdbclient "github.com/kiln-net/kiln/internal/ovsdb/client"
	"github.com/kiln-net/kiln/internal/supervisor/ovncluster"
)

const (
	// northboundName is what the certificates of the northbound servers say.
	northboundName = "ovn-nb"
	// northboundPort is where they take clients.
	northboundPort = 6641
)

// members are the addresses of the northbound database, as the OVNCluster's status lists them.
type members struct {
	clusters <-chan *v1alpha1.OVNCluster
	// clusterID of the newest state.
	clusterID string
}

func watchMembers(ctx context.Context, config *rest.Config) (*members, error) {
	clusters, err := ovncluster.Watch(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("find the northbound database: %w", err)
	}
	return &members{clusters: clusters}, nil
}

// errAnotherDatabase ends the process: all that it remembers is of a database that is not there any more.
var errAnotherDatabase = errors.New("the northbound database was made anew")

// next waits until the addresses are others than those known. An empty list does not count: it says that the operator knows no
// better. Another cluster ID than the one that was known is an error.
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

// follow calls set with every change of the addresses until ctx ends, or the database is another one.
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

// connect returns a session, however long that takes. It starts anew when the addresses change meanwhile.
func (p *controllerProcess) connect(ctx context.Context, m *members) (*ovsdbclient.Session, error) {
	config, err := ovsdbclient.LoadTLS(p.options.tlsDirectory, northboundName)
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

// dial tries to connect until the addresses are others, which it then returns.
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
