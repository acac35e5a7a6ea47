// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	dto "github.com/prometheus/client_model/go"
	"k8s.io/client-go/kubernetes"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/kiln-net/kiln/internal/supervisor/podlabel"
)

const (
	// writtenPeriod is between two looks at the queues after a start, and writtenLooks how many in a row must find them empty.
	writtenPeriod = time.Second
	writtenLooks  = 2
)

// busyMetrics are zero when nothing waits or is worked on.
var busyMetrics = []string{"workqueue_depth", "controller_runtime_active_workers"}

// tellWritten labels the pod with the northbound database's cluster ID once everything that there was at the start has been worked on. After a
// recovery ovn-northd waits for that: what is not written yet it would take for deleted.
func (p *controllerProcess) tellWritten(ctx context.Context, clusterID string) error {
	if clusterID == "" {
		return nil
	}
	clients, err := kubernetes.NewForConfig(p.config)
	if err != nil {
		return fmt.Errorf("make a client of pods: %w", err)
	}
	ticker := time.NewTicker(writtenPeriod)
	defer ticker.Stop()
	for looks := 0; looks < writtenLooks; {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		busy, err := busy()
		if err != nil {
			return err
		}
		if looks++; busy {
			looks = 0
		}
	}
	label := podlabel.Label{Pods: clients.CoreV1().Pods(p.options.own.Namespace), Pod: p.options.own.Pod, Key: podlabel.NorthboundWritten, Log: p.log}
	label.Put(ctx, clusterID)
	p.log.Info("everything has been worked on", "clusterID", clusterID)
	return nil
}

// busy reports whether any reconciler has something to do.
func busy() (bool, error) {
	families, err := ctrlmetrics.Registry.Gather()
	if err != nil {
		return false, fmt.Errorf("look at the queues: %w", err)
	}
	for _, family := range families {
		if slices.Contains(busyMetrics, family.GetName()) && slices.ContainsFunc(family.GetMetric(), positive) {
			return true, nil
		}
	}
	return false, nil
}

func positive(m *dto.Metric) bool { return m.GetGauge().GetValue() > 0 }
