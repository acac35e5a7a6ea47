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
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/test/cluster"
)

// watchAllowed continuously opens connections to a pod, and keeps one open, in both families. The returned function ends the watch.
// It expects that no connection was lost, and that the open connections lost no data.
func watchAllowed(ctx context.Context, from, to *corev1.Pod, port uint16) func(context.Context) {
	GinkgoHelper()
	var dialers []*dialer
	for _, a := range cluster.PodAddrs(to) {
		dialers = append(dialers, startConnections(ctx, fromPod(from), netip.AddrPortFrom(a, port)))
	}
	open := startWatch(ctx, fromPod(from), tcpTo(to, port))
	return func(ctx context.Context) {
		GinkgoHelper()
		for _, d := range dialers {
			lost, all := d.losses(ctx)
			Expect(lost).To(BeEmpty(), "new connections to %s", d.to)
			Expect(all).To(BeNumerically(">", 10), "new connections to %s", d.to)
		}
		Expect(open.end(ctx).losses()).To(BeEmpty())
	}
}

// flood sends a datagram to $1 every few milliseconds until the file $2 exists.
const flood = `exec 9<> <(:)
until [ -e $2 ]; do printf x 2>/dev/null >/dev/udp/$1/8080; read -r -t 0.002 -u 9; done`

// closedFromTheStart creates an isolated pod and an open one on the same node, and sends datagrams to both as soon as they have
// addresses. The receivers' kernels count datagrams, with or without a server: none may arrive at the isolated pod, many must
// arrive at the open one. The kubelet must reach both.
func closedFromTheStart(ctx context.Context, closed, open, from *corev1.Pod) {
	GinkgoHelper()
	stop := fmt.Sprintf("/tmp/flood-%d", time.Now().UnixNano())
	DeferCleanup(func(ctx SpecContext) { _, _ = suite.Cluster.Exec(ctx, from, "touch", stop) }, NodeTimeout(time.Minute))
	for _, pod := range []*corev1.Pod{closed, open} {
		_, err := suite.Cluster.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
		Expect(err).NotTo(HaveOccurred())
	}
	for _, pod := range []*corev1.Pod{closed, open} {
		pod, err := suite.Cluster.WaitPod(ctx, pod.Namespace, pod.Name, allocated)
		Expect(err).NotTo(HaveOccurred())
		for address := range strings.SplitSeq(pod.Annotations[keyAddress], ",") {
			_, err = suite.Cluster.Exec(ctx, from, "bash", "-c", `bash -c "$1" flood $2 $3 </dev/null >/dev/null 2>&1 &`, "start", flood, address, stop)
			Expect(err).NotTo(HaveOccurred())
		}
	}
	for _, pod := range []**corev1.Pod{&closed, &open} {
		var err error
		*pod, err = suite.Cluster.WaitPod(ctx, (*pod).Namespace, (*pod).Name, cluster.Ready) // the kubelet reaches it
		Expect(err).NotTo(HaveOccurred())
	}
	Eventually(datagrams).WithContext(ctx).WithArguments(open).WithTimeout(20*time.Second).Should(HaveEach(BeNumerically(">", 100)), "control: datagrams at the open pod, by family")
	Expect(datagrams(ctx, closed)).To(HaveEach(BeZero()), "datagrams at the closed pod, by family")
}

// datagrams returns the number of UDP datagrams that arrived in a pod, with or without a server, by family.
func datagrams(ctx context.Context, pod *corev1.Pod) ([]int, error) {
	out, err := suite.Cluster.Exec(ctx, pod, "sh", "-c",
		`awk '/^Udp: [0-9]/ {print $2+$3}' /proc/net/snmp; awk '/^Udp6(InDatagrams|NoPorts) / {n+=$2} END {print n}' /proc/net/snmp6`)
	if err != nil {
		return nil, err
	}
	counts := make([]int, 2)
	if _, err := fmt.Sscan(out, &counts[0], &counts[1]); err != nil {
		return nil, fmt.Errorf("counters of %s: %q: %w", pod.Name, out, err)
	}
	return counts, nil
}
