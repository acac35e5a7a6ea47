// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ovncluster watches the OVNCluster for processes without a manager and derives the addresses of databases from it.
package ovncluster

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

// Watch returns a channel that delivers the newest state of the OVNCluster `default`: first the current one, then each change. A
// state that was not received before the next one arrives is skipped. While the OVNCluster does not exist, the channel is empty.
// The watch lasts until ctx ends. observe is called with every state, also if nothing receives from the channel; it must not block and
// may be nil.
func Watch(ctx context.Context, config *rest.Config, observe func(*v1alpha1.OVNCluster)) (<-chan *v1alpha1.OVNCluster, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register OVNCluster: %w", err)
	}
	objects, err := cache.New(config, cache.Options{Scheme: scheme, Mapper: mapper(), ByObject: map[client.Object]cache.ByObject{
		&v1alpha1.OVNCluster{}: {Field: fields.OneTermEqualSelector("metadata.name", v1alpha1.OVNClusterName)},
	}})
	if err != nil {
		return nil, fmt.Errorf("make the watch of OVNCluster: %w", err)
	}
	// GetInformer does not wait for the sync: the API server may be unavailable while the node starts. The first event reports it.
	informer, err := objects.GetInformer(ctx, &v1alpha1.OVNCluster{}, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("watch OVNCluster: %w", err)
	}
	newest := make(chan *v1alpha1.OVNCluster, 1)
	offer := func(object any) {
		if cluster, ok := object.(*v1alpha1.OVNCluster); ok {
			if observe != nil {
				observe(cluster)
			}
			replace(newest, cluster)
		}
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    offer,
		UpdateFunc: func(_, object any) { offer(object) },
	}); err != nil {
		return nil, fmt.Errorf("watch OVNCluster: %w", err)
	}
	go func() { _ = objects.Start(ctx) }() // returns when ctx ends; the informer logs failures and retries
	return newest, nil
}

// mapper maps OVNCluster without discovery, because the API server may be unavailable.
func mapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	m.Add(v1alpha1.GroupVersion.WithKind("OVNCluster"), meta.RESTScopeRoot)
	return m
}

// replace puts the value into a channel of capacity one and discards an unreceived value. There must be only one writer.
func replace[T any](c chan T, value T) {
	select {
	case <-c:
	default:
	}
	c <- value
}

// Endpoint returns a connection method of OVSDB over TLS (ovsdb(7)): ssl:192.0.2.1:6641, ssl:[2001:db8::1]:6641.
func Endpoint(address netip.Addr, port int) string {
	return "ssl:" + net.JoinHostPort(address.String(), strconv.Itoa(port))
}

// Answering returns a database without the members that did not answer the operator's last request, which have no role. If none has
// answered, it returns all of them.
func Answering(db v1alpha1.DatabaseStatus) v1alpha1.DatabaseStatus {
	answering := slices.DeleteFunc(slices.Clone(db.Members), func(m v1alpha1.DatabaseMember) bool { return m.Role == "" })
	if len(answering) > 0 {
		db.Members = answering
	}
	return db
}

// Endpoints returns the members of a database at a port, in the order of the status. Members that have not joined yet are
// omitted, unless none has joined; members with an invalid address are omitted, too. During a recovery Endpoints returns nil
// until the new cluster exists, so that clients do not leave the old one too early.
func Endpoints(db v1alpha1.DatabaseStatus, port int) []string {
	if db.Recovering() && db.ClusterID == "" {
		return nil
	}
	joined := slices.ContainsFunc(db.Members, func(m v1alpha1.DatabaseMember) bool { return m.ServerID != "" })
	endpoints := make([]string, 0, len(db.Members))
	for _, m := range db.Members {
		if joined && m.ServerID == "" {
			continue
		}
		if address, err := netip.ParseAddr(m.Address); err == nil {
			endpoints = append(endpoints, Endpoint(address, port))
		}
	}
	return endpoints
}
