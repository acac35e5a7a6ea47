// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/ovncluster"
	"github.com/kiln-net/kiln/internal/podlabel"
)

// surroundings are the parameters that every supervisor gets from Kubernetes.
type surroundings struct {
	node, pod, namespace, address string

	config   *rest.Config
	client   kubernetes.Interface
	clusters <-chan *v1alpha1.OVNCluster
}

// surround sets up the log, reads the variables of the downward API and starts to watch the OVNCluster. It does not wait for the API
// server.
func surround(ctx context.Context, c component) (surroundings, error) {
	var s surroundings
	apply, err := c.observer(ctx)
	if err != nil {
		return s, err
	}
	for name, value := range map[string]*string{
		"NODE_NAME": &s.node, "POD_NAME": &s.pod, "POD_NAMESPACE": &s.namespace, "POD_IP": &s.address,
	} {
		if *value = os.Getenv(name); *value == "" {
			return s, fmt.Errorf("the environment variable %s is empty: it comes from the downward API", name)
		}
	}
	if s.config, err = ctrl.GetConfig(); err != nil {
		return s, fmt.Errorf("find the API server: %w", err)
	}
	if s.client, err = kubernetes.NewForConfig(s.config); err != nil {
		return s, fmt.Errorf("make a client of the API server: %w", err)
	}
	s.clusters, err = ovncluster.Watch(ctx, s.config, apply)
	return s, err
}

// leads returns a channel whose values are written to the pod's label, and a function that writes them. The function returns after ctx
// has ended and the label is removed.
func (s surroundings) leads(key string) (leads chan bool, run func(context.Context) error) {
	leads = make(chan bool)
	label := podlabel.Label{Pods: s.client.CoreV1().Pods(s.namespace), Pod: s.pod, Key: key, Log: ctrl.Log}
	return leads, func(ctx context.Context) error {
		label.Run(ctx, leads)
		return nil
	}
}
