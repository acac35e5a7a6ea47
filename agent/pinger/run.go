// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pinger

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/node/nodehealth"
	"github.com/kiln-net/kiln/internal/serving/scrape"
)

// Label and App select the pods of kube-ovn-pinger.
const (
	Label = "app"
	App   = "kube-ovn-pinger"
)

// Options of a process.
type Options struct {
	// Node is this node's name, Namespace the namespace of the pod.
	Node, Namespace string
	// PodIPs and HostIPs are the addresses of the pod and of its node.
	PodIPs, HostIPs []netip.Addr
	// Address is the listen address of metrics, /healthz and /readyz.
	Address string
}

// listTimeout bounds the list of pods, so that an API server that does not answer does not delay the other checks.
const listTimeout = 2 * time.Second

// New returns a Pinger that reads the pods of kube-ovn-pinger by reader.
func New(config *rest.Config, o Options, reader client.Reader) (*Pinger, error) {
	apiServer, err := APIServer(config)
	if err != nil {
		return nil, err
	}
	return &Pinger{
		Node: o.Node, PodIPs: o.PodIPs, HostIPs: o.HostIPs,
		Pods: func(ctx context.Context) ([]corev1.Pod, error) {
			ctx, cancel := context.WithTimeout(ctx, listTimeout)
			defer cancel()
			var list corev1.PodList
			if err := reader.List(ctx, &list, client.InNamespace(o.Namespace), client.MatchingLabels{Label: App}); err != nil {
				return nil, fmt.Errorf("list the pods of %s: %w", App, err)
			}
			return list.Items, nil
		},
		APIServer: apiServer,
		Resolver:  &net.Resolver{PreferGo: true},
		Report: func(ctx context.Context) (nodehealth.Report, error) {
			for _, a := range o.PodIPs {
				if host := ofFamily(o.HostIPs, a); host.IsValid() {
					return nodehealth.Get(ctx, netip.AddrPortFrom(host, nodehealth.Port))
				}
			}
			return nodehealth.Report{}, errors.New("the node has no address in a family of the pod")
		},
		Log: ctrl.Log.WithName("pinger"),
	}, nil
}

// NewReader returns a client of the API server that reads pods and the OVNCluster, without a cache.
func NewReader(config *rest.Config) (client.Reader, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	c, err := client.New(config, client.Options{Scheme: scheme, Mapper: mapper()})
	if err != nil {
		return nil, fmt.Errorf("make a client of the API server: %w", err)
	}
	return c, nil
}

func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("make the scheme: %w", err)
	}
	return scheme, nil
}

// mapper maps the kinds of newScheme that are read without discovery, which would wait for an API server that does not answer. A cache of
// one namespace also maps the kinds of lists.
func mapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	m.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	m.Add(corev1.SchemeGroupVersion.WithKind("PodList"), meta.RESTScopeNamespace)
	m.Add(v1alpha1.GroupVersion.WithKind("OVNCluster"), meta.RESTScopeRoot)
	return m
}

// NewManager returns a manager that runs a Pinger in rounds, and the Pinger, which waits for its settings. It serves metrics and health.
func NewManager(config *rest.Config, o Options) (manager.Manager, *Pinger, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, nil, err
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:         scheme,
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return mapper(), nil },
		Cache: cache.Options{
			DefaultTransform: cache.TransformStripManagedFields(),
			ByObject: map[client.Object]cache.ByObject{&corev1.Pod{}: {
				Namespaces: map[string]cache.Config{o.Namespace: {}},
				Label:      labels.SelectorFromSet(labels.Set{Label: App}),
			}},
		},
		Metrics: scrape.NoServer(),
	})
	if err != nil {
		return nil, nil, fmt.Errorf("make the manager: %w", err)
	}
	// Ready does not check the network: a faulty network is no fault of this pod.
	if err := scrape.Serve(mgr, scrape.Served{Address: o.Address, Probes: scrape.ProbesRemote, Ready: healthz.Ping}); err != nil {
		return nil, nil, err
	}
	p, err := New(config, o, mgr.GetClient())
	if err != nil {
		return nil, nil, err
	}
	if err := mgr.Add(p); err != nil {
		return nil, nil, fmt.Errorf("set up the manager: %w", err)
	}
	return mgr, p, nil
}
