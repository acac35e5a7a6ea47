// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ovncluster gives supervisors the one OVNCluster by watch, and the addresses of databases out of it.
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

// Watch returns a channel that gives the newest state of the OVNCluster `default`: first the present one, then each change. A
// state that was not taken before the next came is skipped. Nothing comes while there is none. It lasts until ctx ends.
func Watch(ctx context.Context, config *rest.Config) (<-chan *v1alpha1.OVNCluster, error) {
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
	// The informer is waited for by its first event, not here: the API server may be away while the node starts.
	informer, err := objects.GetInformer(ctx, &v1alpha1.OVNCluster{}, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("watch OVNCluster: %w", err)
	}
	newest := make(chan *v1alpha1.OVNCluster, 1)
	offer := func(object any) {
		if cluster, ok := object.(*v1alpha1.OVNCluster); ok {
			replace(newest, cluster)
		}
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    offer,
		UpdateFunc: func(_, object any) { offer(object) },
	}); err != nil {
		return nil, fmt.Errorf("watch OVNCluster: %w", err)
	}
	go func() { _ = objects.Start(ctx) }() // returns when ctx ends; failures are logged and tried again by the informer
	return newest, nil
}

// mapper knows where OVNClusters are without asking the API server, which may be away.
func mapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	m.Add(v1alpha1.GroupVersion.WithKind("OVNCluster"), meta.RESTScopeRoot)
	return m
}

// replace puts the value into a channel of one place, over one that nobody has taken. There is one writer.
func replace[T any](c chan T, value T) {
	select {
	case <-c:
	default:
	}
	c <- value
}

// Endpoint is a connection method of OVSDB over TLS (ovsdb(7)): ssl:192.0.2.1:6641, ssl:[2001:db8::1]:6641.
func Endpoint(address netip.Addr, port int) string {
	return "ssl:" + net.JoinHostPort(address.String(), strconv.Itoa(port))
}

// Endpoints are the members of a database at a port, in the status' order. Members that have not joined yet are left out, unless none
// has, and so are those whose address does not parse. There are none while the database is made anew: nobody should leave what he has
// for one that is not there yet.
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
