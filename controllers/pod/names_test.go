// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/testing/eventually"
)

func TestAPodWithANodesPortNameIsRefused(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24")
	w.namespace("b", nil)
	process := w.start()
	join, err := ipfamily.ParseCIDRs("100.64.0.0/16")
	w.Must(err)
	w.Must(process.Allocator.SetSubnet("join", ipam.Subnet{CIDRs: join}))
	if _, err := process.Allocator.Allocate("node-a.b", ipam.Request{Subnet: "join"}); err != nil {
		t.Fatal(err)
	}
	p := newPod("b", "node-a")
	w.Create(p)
	w.warned(p, "port name node-a.b belongs to a node")
	w.Delete(p)
	w.pod("b", "after") // reconciled after the deletion
	if _, held := process.Allocator.Lookup("node-a.b"); !held {
		t.Error("the node's lease was released with the pod")
	}
}

func TestANodeTakesItsPortNameFromAPod(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24")
	w.namespace("b", nil)
	process := w.start()
	p, other := w.pod("b", "node-a"), w.pod("b", "node-c")
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a.b"}}
	w.Create(node)
	w.warned(p, "port name node-a.b belongs to a node")
	if w.portNow(p) != nil {
		t.Error("the pod keeps a port with the name of a node's")
	}
	if lease, held := process.Allocator.Lookup("node-a.b"); held {
		t.Errorf("the pod keeps %v", lease)
	}
	if w.portNow(other) == nil {
		t.Error("a pod whose port has another name lost it")
	}
	w.Delete(node)
	eventually.Wait{For: "the pod must get a port once there is no such node"}.Holds(t, func() bool { return w.portNow(p) != nil })
}
