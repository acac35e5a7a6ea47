// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cniserver_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/agent/agenttest"
	"github.com/kiln-net/kiln/agent/sandbox"
	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ovsdb/vswitch"
	"github.com/kiln-net/kiln/internal/testing/must"
)

// shapeOf returns the rate and the burst of traffic to a container in Open vSwitch, and the number of QoS rows of the node.
func shapeOf(c *agenttest.Container) (shape string, rows int) {
	c.Helper()
	var qos []vswitch.QoS
	must.Succeed(c.TB, c.OVS.List(c.Context(), &qos))
	port := &vswitch.Port{}
	for name, iface := range c.Interfaces() {
		if iface.ExternalIDs["container_id"] == c.ID {
			port.Name = name
		}
	}
	if c.OVS.Get(c.Context(), port) != nil || port.QOS == nil {
		return "", len(qos)
	}
	for _, q := range qos {
		queue := &vswitch.Queue{UUID: q.Queues[0]}
		if q.UUID == *port.QOS && c.OVS.Get(c.Context(), queue) == nil {
			shape = queue.OtherConfig["max-rate"] + " " + queue.OtherConfig["burst"] + " " + q.ExternalIDs["pod"]
		}
	}
	return shape, len(qos)
}

func hasShape(c *agenttest.Container, what, want string) {
	c.Helper()
	c.Eventually(what, func() bool { shape, _ := shapeOf(c); return shape == want })
}

// request changes annotations of a running pod: pairs of keys and values, "" to remove one.
func request(n *agenttest.Node, pod *corev1.Pod, pairs ...string) {
	n.Helper()
	base := pod.DeepCopy()
	for i := 0; i < len(pairs); i += 2 {
		if pod.Annotations[pairs[i]] = pairs[i+1]; pairs[i+1] == "" {
			delete(pod.Annotations, pairs[i])
		}
	}
	must.Succeed(n.TB, n.API.Patch(n.Context(), pod, client.MergeFrom(base)))
}

// limitSubnet writes the limits of a subnet to its status, as the controller does.
func limitSubnet(n *agenttest.Node, name string, l *v1.PodLimits) {
	n.Helper()
	s := &v1.Subnet{}
	must.Succeed(n.TB, n.API.Get(n.Context(), client.ObjectKey{Name: name}, s))
	base := s.DeepCopy()
	s.Status.PodLimits = l
	must.Succeed(n.TB, n.API.Status().Patch(n.Context(), s, client.MergeFrom(base)))
}

// servingKernel returns a node whose agent limits pods as in the kernel's datapath.
func servingKernel(t *testing.T) *agenttest.Node {
	n := agenttest.NewNode(t)
	n.PretendKernel()
	n.Register()
	n.Allocate()
	n.StartAgent()
	n.WaitReady()
	return n
}

func TestLimitsOfPodsFollowTheirRequestsAndTheirSubnet(t *testing.T) {
	n := servingKernel(t)
	pod := n.Pod("limited", 40)
	request(n, pod, v1.AnnotationIngressRate.Key(), "10")
	c, free := n.Sandbox(pod, agenttest.NewID()), n.Sandbox(n.Pod("free", 41), agenttest.NewID())
	for _, c := range []*agenttest.Container{c, free} {
		c.MustAdd()
	}
	t.Cleanup(free.MustDel)
	if shape, _ := shapeOf(c); shape != "10000000 5000000 default/limited" {
		t.Errorf("after ADD: %q", shape)
	}
	if shape, rows := shapeOf(free); shape != "" || rows != 1 {
		t.Errorf("without a request: %q and %d rows", shape, rows)
	}
	c.Eventually("the kernel has the limit", func() bool {
		shaped, err := sandbox.Shapings()
		return err == nil && shaped[portOf(c)].Qdisc == "htb" && shaped[portOf(free)].Qdisc != "htb"
	})
	for _, m := range n.Metric("kiln_limited_ports").GetMetric() {
		if want := map[string]float64{"ingress": 1, "egress": 0}[m.GetLabel()[0].GetValue()]; m.GetGauge().GetValue() != want {
			t.Errorf("metric %v, want %v", m, want)
		}
	}
	request(n, pod, v1.AnnotationIngressRate.Key(), "2.5")
	hasShape(c, "a lower rate", "2500000 1250000 default/limited")
	request(n, pod, v1.AnnotationIngressRate.Key(), "fast")
	hasShape(c, "an invalid rate", "")
	request(n, pod, v1.AnnotationIngressRate.Key(), "", v1.KeyIngressBandwidth, "20M")
	hasShape(c, "a rate of Kubernetes", "20000000 10000000 default/limited")

	limitSubnet(n, "ovn-default", &v1.PodLimits{IngressRate: "4M"})
	hasShape(c, "the subnet's limit", "4000000 2000000 default/limited")
	hasShape(free, "the subnet's limit without a request", "4000000 2000000 default/free")
	late := n.Sandbox(n.Pod("late", 42), agenttest.NewID())
	late.MustAdd()
	if shape, _ := shapeOf(late); shape != "4000000 2000000 default/late" {
		t.Errorf("of a new pod: %q", shape)
	}
	late.MustDel()
	limitSubnet(n, "ovn-default", nil)
	hasShape(free, "no limit of the subnet", "")
	hasShape(c, "the pod's own request", "20000000 10000000 default/limited")

	n.Detach(portOf(c)) // another program removes the port
	c.Eventually("the port is back", func() bool { shape, rows := shapeOf(c); return strings.HasPrefix(shape, "20000000") && rows == 1 })
	n.VSCtl("clear", "Port", portOf(c), "qos")
	hasShape(c, "the limit that another program removed", "20000000 10000000 default/limited")
	c.MustDel()
	if _, rows := shapeOf(free); rows != 0 {
		t.Errorf("%d QoS rows after DEL", rows)
	}
}

// TestLimitsNeedNoRowsOfOpenVSwitchInTheUserspaceDatapath: OVN has a meter for each direction there.
func TestLimitsNeedNoRowsOfOpenVSwitchInTheUserspaceDatapath(t *testing.T) {
	n := agenttest.Serving(t)
	pod := n.Pod("limited", 40)
	request(n, pod, v1.AnnotationIngressRate.Key(), "10", v1.AnnotationEgressRate.Key(), "10")
	c := n.Sandbox(pod, agenttest.NewID())
	c.MustAdd()
	t.Cleanup(c.MustDel)
	if shape, rows := shapeOf(c); shape != "" || rows != 0 {
		t.Errorf("%q and %d rows", shape, rows)
	}
}

func portOf(c *agenttest.Container) string {
	name, _ := c.Port()
	return name
}
