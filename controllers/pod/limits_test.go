// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"fmt"
	"testing"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/pod"
	"github.com/kiln-net/kiln/controllers/pod/ipobject"
	"github.com/kiln-net/kiln/internal/limits"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
)

// meters waits until the QoS rows are these: the rate and burst of each match.
func (w world) meters(want ...string) {
	w.Helper()
	w.Rows("QoS", func(row nbtest.Row) string { return fmt.Sprint(row["match"], " ", row["bandwidth"]) }, want...)
}

// withLimits runs the reconciler in a cluster with a datapath.
func (w world) withLimits(datapath v1alpha1.Datapath) {
	w.Helper()
	var settings limits.Cluster
	spec := &v1alpha1.OVNClusterSpec{}
	spec.Nodes.Datapath = datapath
	settings.Set(spec)
	w.Start(stepsWith(ipobject.Pace{}, func(r *pod.Reconciler) { r.Limits = &settings }))
}

func TestLimitsAreMetersInTheUserspaceDatapath(t *testing.T) {
	w := newWorld(t)
	s := w.subnet("ovn-default", "10.16.0.0/24,fd00:10:16::/112")
	w.withLimits(v1alpha1.DatapathUserspace)
	p := w.pod("default", "p", "egress_rate", "10", "ingress_rate", "5", "latency", "20")
	w.pod("default", "free")
	toPod := `outport == "p.default" map[burst:2500 rate:5000]`
	w.meters(`inport == "p.default" map[burst:5000 rate:10000]`, toPod)
	w.warnedOf(p, "LimitAdjusted", "the userspace datapath")

	w.Change(p, func() { p.Annotations["ovn.kubernetes.io/egress_rate"] = "2.5" })
	w.meters(`inport == "p.default" map[burst:1250 rate:2500]`, toPod)
	w.Change(p, func() { p.Annotations["ovn.kubernetes.io/ingress_rate"] = "4" })
	w.meters(`inport == "p.default" map[burst:1250 rate:2500]`, `outport == "p.default" map[burst:2000 rate:4000]`)
	w.Change(p, func() {
		delete(p.Annotations, "ovn.kubernetes.io/ingress_rate")
		delete(p.Annotations, "ovn.kubernetes.io/egress_rate")
		p.Annotations[kubeovnv1.KeyEgressBandwidth] = "20M"
	})
	w.meters(`inport == "p.default" map[burst:10000 rate:20000]`)

	s.Status.PodLimits = &kubeovnv1.PodLimits{EgressRate: "1M", IngressRate: "2M"}
	w.Must(w.Client.Status().Update(w.Context(), s))
	w.meters(`inport == "free.default" map[burst:525 rate:1000]`, `inport == "p.default" map[burst:525 rate:1000]`,
		`outport == "free.default" map[burst:1000 rate:2000]`, `outport == "p.default" map[burst:1000 rate:2000]`)
	w.warnedOf(p, "LimitAdjusted", "egress rate 20Mbit/s is lowered to 1Mbit/s")
	s.Status.PodLimits = nil
	w.Must(w.Client.Status().Update(w.Context(), s))
	w.meters(`inport == "p.default" map[burst:10000 rate:20000]`)

	w.Change(p, func() { p.Annotations[kubeovnv1.KeyEgressBandwidth] = "fast" })
	w.meters()
	w.warnedOf(p, "AnnotationInvalid", kubeovnv1.KeyEgressBandwidth)
	w.Change(p, func() { p.Annotations[kubeovnv1.KeyEgressBandwidth] = "1M" })
	w.meters(`inport == "p.default" map[burst:525 rate:1000]`)
	w.Delete(p)
	w.meters()
}

func TestLimitsNeedNoRowInTheKernelDatapath(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24")
	w.withLimits(v1alpha1.DatapathKernel)
	p := w.pod("default", "p", "egress_rate", "10", "ingress_rate", "5", "latency", "20", "egress_burst", "0")
	w.warnedOf(p, "LimitAdjusted", "egress burst 0 bit is raised to 5M bit")
	w.meters()
	w.Change(p, func() { p.Labels = map[string]string{"a": "b"} })
	w.Rests("pod")
	if n := w.events(p, "LimitAdjusted"); n != 1 {
		t.Errorf("%d events", n)
	}
}
