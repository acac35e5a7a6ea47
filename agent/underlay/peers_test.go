// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/kiln-net/kiln/internal/testing/must"
)

// TestANodeIsFewOfThePeersOfAMove: peers prove that a moved interface works. A node that lists many addresses must not be all of them.
func TestANodeIsFewOfThePeersOfAMove(t *testing.T) {
	nodeOf := func(name string, addresses ...string) *corev1.Node {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		for _, a := range addresses {
			node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
		}
		return node
	}
	var many []string
	for i := range 100 {
		many = append(many, fmt.Sprintf("198.51.100.%d", i), fmt.Sprintf("2001:db8::%x", i))
	}
	r := &Reconciler{Node: "own", Live: fake.NewClientBuilder().WithObjects(
		nodeOf("a-stolen", many...), nodeOf("b", "192.0.2.2", "fd00::2"), nodeOf("c", "192.0.2.3"), nodeOf("own", "192.0.2.9"),
	).Build()}
	var want []netip.Addr
	for _, a := range []string{"198.51.100.0", "2001:db8::", "192.0.2.2", "fd00::2", "192.0.2.3"} {
		want = append(want, netip.MustParseAddr(a))
	}
	if got := must.Value(r.peers(t.Context())); !slices.Equal(got, want) {
		t.Errorf("the peers are %v, want %v", got, want)
	}
}
