// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"runtime"
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// Kernel parameters of connection tracking. They exist while the kernel's module nf_conntrack is loaded, which the kernel datapath and the
// node's NAT both need.
const (
	conntrackMax   = "net/netfilter/nf_conntrack_max"
	conntrackCount = "net/netfilter/nf_conntrack_count"
)

// The size of kube-proxy's defaults conntrack.maxPerCore and conntrack.min (kubeproxy.config.k8s.io/v1alpha1). Where kube-proxy runs as
// well, both programs then want the same value. A connection between two pods has an entry for each of their zones.
const (
	conntrackPerCPU = 32768
	conntrackLeast  = 131072
)

// connections returns the number of connections that a node with so many CPUs should be able to track, if it is more than the value of
// the parameter; otherwise false. The value is empty if the module is not loaded.
func connections(value string, cpus int) (want string, raise bool) {
	have, err := strconv.Atoi(value)
	n := max(conntrackLeast, conntrackPerCPU*cpus)
	return strconv.Itoa(n), err == nil && have < n
}

// raiseConntrack raises the number of connections that the kernel can track. It never lowers it, because an administrator may have set a
// larger one. Only the node's first network namespace may write the parameter: a node that is a container keeps the number of its
// host. A failure is logged once and affects no pod.
func (r *Reconciler) raiseConntrack(ctx context.Context) {
	have := value(conntrackMax)
	want, raise := connections(have, runtime.NumCPU())
	if !raise {
		return
	}
	err := sysctl(conntrackMax, want)
	switch {
	case err == nil:
		log.FromContext(ctx).Info("the kernel can track more connections", "was", have, "is", want)
	case describe(err) != r.conntrackFailure:
		r.conntrackFailure = describe(err)
		log.FromContext(ctx).Error(err, "the kernel can track fewer connections than recommended: set the parameter on the node", "is", have, "want", want)
	}
}

// parameter returns a function that reads a kernel parameter; 0 if it does not exist.
func parameter(key string) func() float64 {
	return func() float64 {
		n, err := strconv.ParseFloat(value(key), 64)
		if err != nil {
			return 0
		}
		return n
	}
}

// exportMetrics registers the metrics of this package when a process configures a node. Other processes of the program do not export them.
var exportMetrics = sync.OnceFunc(func() {
	metrics.Registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "kiln_conntrack_entries", Help: "Connections that the node's kernel tracks.",
		}, parameter(conntrackCount)),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "kiln_conntrack_limit", Help: "The largest number of connections that the node's kernel can track.",
		}, parameter(conntrackMax)),
	)
})
