// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"context"
	"net/url"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientmetrics "k8s.io/client-go/tools/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// requestLatency has Kube-OVN's name and labels.
var requestLatency = prometheus.NewHistogramVec(prometheus.HistogramOpts{
	Name:    "rest_client_request_latency_seconds",
	Help:    "Duration of requests to the API server, by verb and by the URL of the resource, without namespace and name.",
	Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
}, []string{"verb", "url"})

func init() {
	metrics.Registry.MustRegister(requestLatency)
	clientmetrics.RequestLatency = latencies{}
}

// latencies implements client-go's metrics.LatencyMetric.
type latencies struct{}

// Observe records a request.
func (latencies) Observe(_ context.Context, verb string, u url.URL, latency time.Duration) {
	requestLatency.WithLabelValues(verb, resourceURL(u.Path)).Observe(latency.Seconds())
}

// resourceURL returns the URL path of the resource, `/api/v1/pods/status` for `/api/v1/namespaces/a/pods/b/status`, so that the number of series
// does not depend on the number of objects.
func resourceURL(path string) string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	length := 2 // api/v1
	if parts[0] == "apis" {
		length = 3 // apis/GROUP/VERSION
	}
	if len(parts) <= length {
		return "/" + strings.Join(parts, "/")
	}
	root, rest := parts[:length:length], parts[length:]
	if rest[0] == "namespaces" && len(rest) > 2 {
		rest = rest[2:]
	}
	root = append(root, rest[0])
	if len(rest) > 2 { // a subresource
		root = append(root, rest[2])
	}
	return "/" + strings.Join(root, "/")
}
