// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

var objectsDesc = prometheus.NewDesc("kiln_objects", "Objects by kind, and by type and status of their conditions. Only the leader reports them.",
	[]string{"kind", "condition", "status"}, nil)

// countTimeout bounds the lists from the cache.
const countTimeout = 2 * time.Second

// objectCounter counts the objects in the cache by their conditions when metrics are requested. The number of series does not depend on the
// number of objects.
type objectCounter struct {
	reader client.Reader
	// elected is closed once this process leads.
	elected <-chan struct{}
}

// Describe implements prometheus.Collector.
func (objectCounter) Describe(to chan<- *prometheus.Desc) { to <- objectsDesc }

// Collect implements prometheus.Collector.
func (c objectCounter) Collect(to chan<- prometheus.Metric) {
	select {
	case <-c.elected:
	default:
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), countTimeout)
	defer cancel()
	for _, kind := range kubeovnv1.ImplementedKinds {
		if kind.Kind == "IP" { // each port has one
			continue
		}
		list := kind.List.DeepCopyObject().(client.ObjectList)
		if err := c.reader.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil { // it only reads the objects
			continue
		}
		counts := map[[2]string]float64{}
		_ = meta.EachListItem(list, func(o runtime.Object) error { // the function returns no error
			for _, condition := range kubeovnv1.ConditionsOf(o) {
				counts[[2]string{condition.Type, string(condition.Status)}]++
			}
			return nil
		})
		for key, count := range counts {
			to <- prometheus.MustNewConstMetric(objectsDesc, prometheus.GaugeValue, count, kind.Kind, key[0], key[1])
		}
	}
}
