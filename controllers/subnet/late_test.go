// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// without returns the options of a cache that never receives the object with this name.
func without(name string) cache.ByObject {
	return cache.ByObject{Field: fields.OneTermNotEqualSelector("metadata.name", name)}
}

// TestObjectsThatTheCacheDoesNotHaveYetStay: a new leader must not clean up objects that its cache does not have yet; the cache may be older than
// the cache of the previous leader.
func TestObjectsThatTheCacheDoesNotHaveYetStay(t *testing.T) {
	n := start(t)
	late, gone := n.node("n-late", "192.0.2.11"), n.node("n-gone", "192.0.2.12")
	was := n.connected(late)
	n.connected(gone)
	n.ready("s-late", kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/24"})
	vpcs := []*kubeovnv1.Vpc{{ObjectMeta: metav1.ObjectMeta{Name: "v-late"}}, {ObjectMeta: metav1.ObjectMeta{Name: "v-gone"}}}
	n.Create(vpcs[0], vpcs[1])
	left := n.ready("s-gone", kubeovnv1.SubnetSpec{CIDRBlock: "10.21.0.0/24"})
	n.rows("Logical_Router", "name", "ovn-cluster", "v-gone", "v-late")
	n.process.Stop()
	for _, o := range []client.Object{left, vpcs[1], gone} {
		n.Get(o)
		n.Change(o, func() { o.SetFinalizers(nil) })
		n.Delete(o)
	}

	n.runWith(cache.Options{ByObject: map[client.Object]cache.ByObject{
		&corev1.Node{}: without("n-late"), &kubeovnv1.Subnet{}: without("s-late"), &kubeovnv1.Vpc{}: without("v-late"),
	}})
	n.rows("Logical_Router", "name", "ovn-cluster", "v-late")
	n.rows("Logical_Switch", "name", "join", "ovn-default", "s-late")
	n.Eventually(func() string {
		if _, held := n.process.Allocator.Lookup("node-n-gone"); held {
			return "the deleted node has an address"
		}
		return ""
	})
	if allocation, _ := n.process.Allocator.Lookup("node-n-late"); fmt.Sprint(allocation.Addresses) != fmt.Sprint(was.Addresses) {
		t.Errorf("the node holds %v, it had %v", allocation.Addresses, was.Addresses)
	}
	n.run()
	if is := n.connected(late); fmt.Sprint(is.Addresses) != fmt.Sprint(was.Addresses) {
		t.Errorf("the node got %v, and then %v", was.Addresses, is.Addresses)
	}
}
