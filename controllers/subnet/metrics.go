// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/reconciler"
)

// Names and labels match the metrics of Kube-OVN. As there, a dual-stack subnet has one series, with the lower number of available and the
// higher number of used addresses of its families.
var addressCounts = reconciler.NewSeries(
	prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "subnet_available_ip_count", Help: "Addresses of the subnet that a port can get.",
	}, []string{"subnet_name", "protocol", "subnet_cidr"}),
	prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "subnet_used_ip_count", Help: "Addresses of the subnet that are held.",
	}, []string{"subnet_name", "protocol", "subnet_cidr"}),
)

// portCounts has the ports of a subnet's switch, and their largest number.
var portCounts = reconciler.NewSeries(
	prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kiln_subnet_ports", Help: "Ports of the subnet's switch, including ports of reserved and retained addresses.",
	}, []string{"subnet_name"}),
	prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kiln_subnet_ports_limit", Help: "The largest number of ports that the subnet's switch can have.",
	}, []string{"subnet_name"}),
)

// measure exports the usage of a subnet.
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
	addressCounts.Set([]string{subnet.Name, subnet.Spec.Protocol, subnet.Spec.CIDRBlock}, available, used)
	ports := r.Allocator.Ports(subnet.Name)
	portCounts.Set([]string{subnet.Name}, float64(ports.Used), float64(ports.Limit))
}
