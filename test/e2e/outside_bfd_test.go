// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	lab "github.com/kiln-net/kiln/hack/lab/cluster"
)

// bfdRouter is FRR's bfdd on the lab's router.
type bfdRouter struct{ *bgpDaemon }

// startBFD starts bfdd with a session with each peer.
func startBFD(peers []netip.Addr) bfdRouter {
	GinkgoHelper()
	var config strings.Builder
	config.WriteString("bfd\n")
	for _, peer := range peers {
		fmt.Fprintf(&config, " peer %s\n  no shutdown\n exit\n", peer)
	}
	return bfdRouter{startDaemon(lab.Router, "mkdir -p /run/frr /var/tmp/frr && chown frr:frr /run/frr /var/tmp/frr && /usr/lib/frr/zebra -d -P 0 && "+
		"exec /usr/lib/frr/bfdd -P 0 -f /run/bgp.conf --log stdout", config.String())}
}

// shutdown ends a session, or begins it again.
func (r bfdRouter) shutdown(ctx context.Context, peer netip.Addr, down bool) {
	GinkgoHelper()
	command := "shutdown"
	if !down {
		command = "no shutdown"
	}
	_, err := r.run(ctx, "vtysh", "-c", "configure terminal", "-c", "bfd", "-c", "peer "+peer.String(), "-c", command)
	Expect(err).NotTo(HaveOccurred())
}

// setBFD sets enableBfd of a Vpc.
func setBFD(ctx context.Context, vpc string, enabled bool) {
	GinkgoHelper()
	v := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: vpc}}
	Expect(suite.Objects.Patch(ctx, v, client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"enableBfd":%t}}`, enabled)))).To(Succeed())
}

// expectBFD waits until the condition BFDUp of a Vpc has a status, and its message these words.
func expectBFD(ctx context.Context, vpc string, status metav1.ConditionStatus, words ...string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		v := &kubeovnv1.Vpc{}
		g.Expect(suite.Objects.Get(ctx, client.ObjectKey{Name: vpc}, v)).To(Succeed())
		expected := []OmegaMatcher{HaveField("Type", kubeovnv1.ConditionBFDUp), HaveField("Status", status)}
		for _, word := range words {
			expected = append(expected, HaveField("Message", ContainSubstring(word)))
		}
		g.Expect(v.Status.Conditions).To(ContainElement(And(expected...)))
	}).WithContext(ctx).WithTimeout(time.Minute).Should(Succeed())
}
