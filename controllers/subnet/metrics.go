// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipam"
	"github.com/kiln-net/kiln/internal/ipfamily"
)

// Names and labels match the metrics of Kube-OVN. As there, a dual-stack subnet has one series, with the lower number of available and the
// higher number of used addresses of its families.
var (
	availableIPs = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "subnet_available_ip_count", Help: "Addresses of the subnet that a port can get.",
	}, usageLabels)
	usedIPs = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "subnet_used_ip_count", Help: "Addresses of the subnet that are held.",
	}, usageLabels)
)

var usageLabels = []string{"subnet_name", "protocol", "subnet_cidr"}

func init() { metrics.Registry.MustRegister(availableIPs, usedIPs) }

// measure exports the usage of a subnet. It deletes series with labels that have changed.
func (r *Reconciler) measure(subnet *kubeovnv1.Subnet, usage ipam.Usage) {
	cidrs, err := ipfamily.ParseCIDRs(subnet.Spec.CIDRBlock)
	if err != nil || len(cidrs) == 0 || !r.Allocator.HasSubnet(subnet.Name) {
		return
	}
	available, used := math.Inf(1), 0.0
	for _, cidr := range cidrs {
		family := usage[ipfamily.Of(cidr.Addr())]
		available, used = min(available, family.Available), max(used, family.Using)
	}
	labels := [...]string{subnet.Name, subnet.Spec.Protocol, subnet.Spec.CIDRBlock}
	if before, ok := r.measured.Swap(subnet.Name, labels); ok && before != labels {
		forget(before)
	}
	availableIPs.WithLabelValues(labels[:]...).Set(available)
	usedIPs.WithLabelValues(labels[:]...).Set(used)
}

// unmeasure deletes the series of a subnet.
func (r *Reconciler) unmeasure(subnet string) {
	if labels, ok := r.measured.LoadAndDelete(subnet); ok {
		forget(labels)
	}
}

func forget(labels any) {
	values := labels.([3]string)
	availableIPs.DeleteLabelValues(values[:]...)
	usedIPs.DeleteLabelValues(values[:]...)
}
